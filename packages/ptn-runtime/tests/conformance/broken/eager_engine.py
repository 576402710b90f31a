"""An engine whose spec stands in the module of its factory: reading the spec loads everything."""

from __future__ import annotations

from broken_engines import Correct
from ptn_runtime.engine import API_VERSION, EngineSpec


class Eager(Correct):
    """No other fault."""

    name = "eager-import"


SPEC = EngineSpec("eager-import", API_VERSION, "eager_engine:Eager", "a test of the conformance suite")
