"""What a package holds, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ptn_format.graph import (
    AffineGroup,
    Graph,
    GraphArg,
    Method,
    OpKind,
    OutputKind,
    PackedQuant,
    Program,
    QuantScheme,
)
from ptn_format.signature import NAME_KEY

__all__ = ["ConstantLine", "InputLine", "MethodReport", "Report"]

_SHOWN_CONSTANTS = 12
_SHOWN_STATE = 6


class _Sized(Protocol):
    @property
    def dtype(self) -> Any: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class InputLine:
    """One user input: name, element type, and the allowed range of each axis as text."""

    name: str
    dtype: str
    dims: tuple[str, ...]
    mutated: bool = False

    @property
    def dynamic_axes(self) -> tuple[int, ...]:
        """Axes whose size may vary."""
        return tuple(i for i, dim in enumerate(self.dims) if ".." in dim)


@dataclass(frozen=True, slots=True)
class ConstantLine:
    """One constant: key, element type, shape, bytes, and how it is quantised (empty where it is not)."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    quantization: str = ""


@dataclass(frozen=True, slots=True)
class MethodReport:
    """One method.

    Attributes:
        name: its name.
        inputs: its user inputs.
        operators: how often each operator occurs, nested graphs included.
        state: keys of the buffers that it changes.
        rewrites: by pass, how often it fused or folded something.
    """

    name: str
    inputs: tuple[InputLine, ...]
    operators: Mapping[str, int]
    state: tuple[str, ...]
    rewrites: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """A whole program. `str()` gives a readable text.

    Attributes:
        methods: one report per method.
        constants: the data, largest first.
    """

    methods: tuple[MethodReport, ...]
    constants: tuple[ConstantLine, ...]

    @classmethod
    def of(
        cls, program: Program, constants: Mapping[str, _Sized], rewrites: Mapping[str, Mapping[str, int]] | None = None
    ) -> Report:
        """The report on a program and its data.

        Args:
            program: the program.
            constants: the data by key.
            rewrites: by method and pass, how often the pass fused or folded something.
        """
        rewritten = rewrites or {}
        schemes: dict[str, str] = {}
        for method in program.methods:
            for ref in method.constants:
                if ref.meta.quant is not None:
                    schemes[ref.data_key] = _scheme(ref.meta.quant)
        lines = [
            ConstantLine(key, str(item.dtype), tuple(item.shape), item.nbytes, schemes.get(key, ""))
            for key, item in constants.items()
        ]
        lines.sort(key=lambda line: (-line.nbytes, line.key))
        methods = tuple(_method(method, rewritten.get(method.name, {})) for method in program.methods)
        return cls(methods, tuple(lines))

    @property
    def nbytes(self) -> int:
        """Bytes of all constants, before equal ones are merged."""
        return sum(line.nbytes for line in self.constants)

    def __str__(self) -> str:
        parts = [part for method in self.methods for part in _method_text(method)]
        count = len(self.constants)
        parts.append(f"{count} constant{'s' if count != 1 else ''}, {_size(self.nbytes)}")
        for line in self.constants[:_SHOWN_CONSTANTS]:
            quantization = f"  {line.quantization}" if line.quantization else ""
            parts.append(f"  {_size(line.nbytes):>10}  {line.dtype}{list(line.shape)}  {line.key}{quantization}")
        if count > _SHOWN_CONSTANTS:
            rest = sum(line.nbytes for line in self.constants[_SHOWN_CONSTANTS:])
            parts.append(f"  {_size(rest):>10}  in {count - _SHOWN_CONSTANTS} more")
        return "\n".join(parts)


def _method(method: Method, rewrites: Mapping[str, int]) -> MethodReport:
    mutated = {spec.target for spec in method.output_specs if spec.kind is OutputKind.USER_INPUT_MUTATION}
    names = {node.name: node.metadata.get(NAME_KEY, node.name) for node in method.graph.nodes}
    inputs = []
    for name in method.graph.inputs:
        meta = method.graph.tensor_values[name]
        dims = tuple(map(str, meta.sizes))
        inputs.append(InputLine(names[name], meta.dtype.torch_name, dims, name in mutated))
    state = tuple(spec.target or "" for spec in method.output_specs if spec.kind is OutputKind.BUFFER_MUTATION)
    counts = Counter(_targets(method.graph))
    operators = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return MethodReport(method.name, tuple(inputs), operators, state, dict(sorted(rewrites.items())))


def _targets(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.op_kind is OpKind.CALL_FUNCTION and node.target:
            yield node.target.removeprefix("torch.ops.")
        for item in node.inputs:
            if isinstance(item.arg, GraphArg):
                yield from _targets(item.arg.graph)


def _method_text(method: MethodReport) -> Iterator[str]:
    yield f"method {method.name}"
    for line in method.inputs:
        note = "  (changed by the call)" if line.mutated else ""
        yield f"  input {line.name}: {line.dtype}[{', '.join(line.dims)}]{note}"
    if method.state:
        yield f"  state {_some(method.state)}"
    if method.rewrites:
        yield f"  rewritten: {', '.join(f'{name} {count}' for name, count in method.rewrites.items())}"
    yield f"  {sum(method.operators.values())} operations, {len(method.operators)} different operators"
    width = max((len(str(count)) for count in method.operators.values()), default=1)
    for operator, count in method.operators.items():
        yield f"    {count:>{width}}  {operator}"


def _some(names: Sequence[str]) -> str:
    """The names, or the first few of many."""
    if len(names) <= _SHOWN_STATE:
        return ", ".join(names)
    return f"{', '.join(names[: _SHOWN_STATE - 1])} and {len(names) - _SHOWN_STATE + 1} more"


def _scheme(scheme: QuantScheme) -> str:
    if isinstance(scheme, PackedQuant):
        return scheme.codec
    assert isinstance(scheme, AffineGroup)
    bits = (scheme.quant_max - scheme.quant_min).bit_length()
    group = f"groups of {scheme.group_size}" if scheme.group_size else "one group per row"
    return f"{bits}-bit affine, {group}"


def _size(nbytes: int) -> str:
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
