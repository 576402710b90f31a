"""What a conformance run found, as JSON for `docs/op-coverage.md` and for engine authors."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from ptn_format.dtypes import ScalarType

from ptn_runtime.conformance.case import Case

__all__ = ["Entry", "Report"]


@dataclass
class Entry:
    """The outcome of one case.

    Attributes:
        case: the case's id.
        op: canonical operator name.
        dtype: dtype of its first tensor argument (of its first result where it has none).
        outcome: `passed`, `failed`, `unsupported` (the engine refuses the node), or `on_host` (it passed; the shapes
            of the results depend on the data, so the runtime calls the operator itself, whatever the engine).
        detail: why, where it did not pass.
    """

    case: str
    op: str
    dtype: str
    outcome: str
    detail: str = ""


@dataclass
class Report:
    """One run of the suite on one engine and device."""

    engine: str
    device: str
    version: str
    entries: list[Entry] = field(default_factory=list)

    def add(self, case: Case, outcome: str, detail: str = "") -> None:
        """Notes the outcome of a case."""
        self.entries.append(Entry(str(case), case.op, case_dtype(case), outcome, detail))

    def save(self, path: Path) -> None:
        """Writes the report as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Report:
        """Reads what `save` wrote."""
        document = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            document["engine"], document["device"], document["version"], [Entry(**e) for e in document["entries"]]
        )


def case_dtype(case: Case) -> str:
    """The dtype under which a case counts."""
    for value in case.args.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, np.ndarray):
                return ScalarType.from_numpy(item.dtype).torch_name
    for value in case.args.values():
        if isinstance(value, ScalarType):
            return value.torch_name
    return "float32"
