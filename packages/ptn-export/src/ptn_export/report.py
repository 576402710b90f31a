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
from ptn_format.graph import Dim as DimRange
from ptn_format.signature import NAME_KEY

from ptn_export.dynamic_axes import AxisRequest

__all__ = ["AxisLine", "ConstantLine", "InputLine", "MethodReport", "Report"]

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
class AxisLine:
    """An axis that the user asked to be dynamic.

    Attributes:
        input: the input's name.
        axis: the axis.
        asked: the name of its Dim, or `DYNAMIC` or `AUTO`.
        sizes: what it takes, such as `1..8`.
        stayed_dynamic: whether its size may vary.
        remark: why it is not as asked for; empty where it is.
    """

    input: str
    axis: int
    asked: str
    sizes: str
    stayed_dynamic: bool
    remark: str = ""


@dataclass(frozen=True, slots=True)
class ConstantLine:
    """One constant.

    Attributes:
        key: its key.
        dtype: element type as stored.
        shape: shape as stored.
        nbytes: bytes.
        quantization: how it is quantised; empty where it is not.
        folded_from: keys of the user's constants that a pass made it from; empty where it is one of them.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    quantization: str = ""
    folded_from: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MethodReport:
    """One method.

    Attributes:
        name: its name.
        inputs: its user inputs.
        operators: how often each operator occurs, nested graphs included.
        state: keys of the buffers that it changes.
        rewrites: by pass, how often it fused or folded something.
        axes: the axes that were to be dynamic, where that is known: `ptn_export.export` and the command know it.
    """

    name: str
    inputs: tuple[InputLine, ...]
    operators: Mapping[str, int]
    state: tuple[str, ...]
    rewrites: Mapping[str, int] = field(default_factory=dict)
    axes: tuple[AxisLine, ...] = ()


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
        cls,
        program: Program,
        constants: Mapping[str, _Sized],
        *,
        rewrites: Mapping[str, Mapping[str, int]] | None = None,
        folded: Mapping[str, tuple[str, ...]] | None = None,
        requests: Mapping[str, Sequence[AxisRequest]] | None = None,
    ) -> Report:
        """The report on a program and its data.

        Args:
            program: the program.
            constants: the data by key.
            rewrites: by method and pass, how often the pass fused or folded something.
            folded: by key of a constant that a pass made, the keys of what it was made from.
            requests: by method, the axes that were to be dynamic.
        """
        rewrites, folded, requests = rewrites or {}, folded or {}, requests or {}
        schemes: dict[str, str] = {}
        for method in program.methods:
            for ref in method.constants:
                if ref.meta.quant is not None:
                    schemes[ref.data_key] = _scheme(ref.meta.quant)
        lines = [
            ConstantLine(
                key, str(item.dtype), tuple(item.shape), item.nbytes, schemes.get(key, ""), folded.get(key, ())
            )
            for key, item in constants.items()
        ]
        lines.sort(key=lambda line: (-line.nbytes, line.key))
        methods = tuple(
            _method(method, rewrites.get(method.name, {}), requests.get(method.name, ())) for method in program.methods
        )
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
            notes = f"  {line.quantization}" if line.quantization else ""
            notes += f"  (folded from {_some(line.folded_from)})" if line.folded_from else ""
            parts.append(f"  {_size(line.nbytes):>10}  {line.dtype}{list(line.shape)}  {line.key}{notes}")
        if count > _SHOWN_CONSTANTS:
            rest = sum(line.nbytes for line in self.constants[_SHOWN_CONSTANTS:])
            parts.append(f"  {_size(rest):>10}  in {count - _SHOWN_CONSTANTS} more")
        parts += _quantization_text(self.constants)
        return "\n".join(parts)


def _method(method: Method, rewrites: Mapping[str, int], requests: Sequence[AxisRequest]) -> MethodReport:
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
    axes = tuple(
        _axis(inputs[request.input].name, method.graph.tensor_values[method.graph.inputs[request.input]].sizes, request)
        for request in requests
    )
    return MethodReport(method.name, tuple(inputs), operators, state, dict(sorted(rewrites.items())), axes)


def _axis(name: str, sizes: Sequence[DimRange], request: AxisRequest) -> AxisLine:
    """What became of an axis that was to be dynamic."""
    size = sizes[request.axis]
    remark = ""
    if size.is_static and request.example in (0, 1):
        remark = f"PyTorch takes an example size of {request.example} for a fixed one: give 2 or more"
    elif size.is_static:
        remark = f"the model's code works for size {size.min} only, as with `x.view({size.min}, ...)`"
    elif request.minimum is not None and size.min > request.minimum:
        remark = f"sizes from {request.minimum} on were asked for: use `Dim({name!r}, min={request.minimum})`"
    return AxisLine(name, request.axis, request.name, str(size), not size.is_static, remark)


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
    for axis in method.axes:
        verdict = "dynamic" if axis.stayed_dynamic else "NOT dynamic"
        remark = f" ({axis.remark})" if axis.remark else ""
        yield f"  axis {axis.axis} of {axis.input}, {axis.asked}: {verdict}, {axis.sizes}{remark}"
    if method.state:
        yield f"  state {_some(method.state)}"
    if method.rewrites:
        yield f"  rewritten: {', '.join(f'{name} {count}' for name, count in method.rewrites.items())}"
    yield f"  {sum(method.operators.values())} operations, {len(method.operators)} different operators"
    width = max((len(str(count)) for count in method.operators.values()), default=1)
    for operator, count in method.operators.items():
        yield f"    {count:>{width}}  {operator}"


def _quantization_text(constants: Sequence[ConstantLine]) -> list[str]:
    """One line per scheme of quantisation, largest first."""
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for line in constants:
        if line.quantization:
            sizes[line.quantization] += line.nbytes
            counts[line.quantization] += 1
    return [
        f"quantised: {_size(size)} in {counts[scheme]} constant{'s' if counts[scheme] != 1 else ''}, {scheme}"
        for scheme, size in sizes.most_common()
    ]


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
