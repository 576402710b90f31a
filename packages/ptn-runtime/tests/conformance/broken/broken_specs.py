"""What the entry points of the broken engines name."""

from __future__ import annotations

from ptn_runtime.engine import API_VERSION, EngineSpec

NAMES = {
    "correct": "Correct",
    "deaf-to-close": "DeafToClose",
    "forgotten-input": "ForgottenInput",
    "frozen-shape": "FrozenShape",
    "growing-memory": "GrowingMemory",
    "kept-state-array": "KeptStateArray",
    "leaked-state": "LeakedState",
    "lying-supports": "LyingSupports",
    "modest": "Modest",
    "reused-buffer": "ReusedBuffer",
    "shared-output": "SharedOutput",
    "swallowed-index-error": "SwallowedIndexError",
    "wrong-dtype": "WrongDtype",
    "wrong-nan": "WrongNan",
    "wrong-ties": "WrongTies",
}

SPECS = {
    name: EngineSpec(name, API_VERSION, f"broken_engines:{attribute}", "a test of the conformance suite")
    for name, attribute in NAMES.items()
}
globals().update({f"SPEC_{attribute}": SPECS[name] for name, attribute in NAMES.items()})
