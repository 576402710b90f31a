"""Programs for people and tools: text that reads like code, JSON with every field, and graphs for Graphviz."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from ptn_format.graph import (
    AffineGroup,
    Argument,
    BoolArg,
    BoolListArg,
    FloatArg,
    FloatListArg,
    Graph,
    GraphArg,
    IntArg,
    IntListArg,
    Method,
    NamedArgument,
    Node,
    NoneArg,
    OpKind,
    OptionalTensorListArg,
    Output,
    OutputKind,
    OutputValueKind,
    Program,
    QuantScheme,
    ScalarTypeArg,
    StringArg,
    TensorArg,
    TensorListArg,
    TensorMeta,
)
from ptn_format.signature import NAME_KEY, SOURCE_KEY

__all__ = ["describe_node", "describe_quant", "describe_tensor", "short_target", "to_dot", "to_json", "to_text"]

Metas = Mapping[str, TensorMeta]


def to_text(program: Program | Method) -> str:
    """The program, or one method of it, as text that reads like code.

    A call is written as `%add: float32[1..8, 384] = aten.add.Tensor(%x, %y, alpha=1)`: leading tensors without,
    other arguments with their names, trailing arguments that are None left out. `1..8` is an axis of one to eight
    elements. An argument that is written to is marked `mut`, a result that shares an argument's storage `alias`.
    Every name is printable, whatever the file holds.
    """
    if isinstance(program, Method):
        return "\n".join(_method_lines(program)) + "\n"
    lines = [f"program, format version {_quoted(program.version)}"]
    for method in program.methods:
        lines += ["", *_method_lines(method)]
    return "\n".join(lines) + "\n"


def to_json(program: Program | Method, *, indent: int | None = 2) -> str:
    """The program, or one method of it, as JSON: every field under its own name, in the order of the schema.

    Enumerators are written by name, arguments and quantisation schemes with their type under `type`, mappings as
    objects. Floats that JSON lacks are the strings `"Infinity"`, `"-Infinity"` and `"NaN"`.
    """
    return json.dumps(_plain(program), indent=indent, ensure_ascii=False, allow_nan=False)


def to_dot(program: Program | Method) -> str:
    """The program, or one method of it, in Graphviz' language: a cluster for each method and nested graph."""
    methods = (program,) if isinstance(program, Method) else program.methods
    lines = ["digraph program {", '  node [shape=box, fontname="monospace", fontsize=10];', "  edge [fontsize=9];"]
    for number, method in enumerate(methods):
        metas = _metas(method)
        lines += _dot_graph(method.graph, metas, f"m{number}", f"method {_printable(method.name)}", "  ")
    return "\n".join([*lines, "}"]) + "\n"


def describe_tensor(meta: TensorMeta | None) -> str:
    """Type and sizes, such as `float32[1..8, 384]`; a memory order that is not contiguous follows in braces."""
    if meta is None:
        return "?"
    text = f"{meta.dtype.torch_name}[{', '.join(str(dim) for dim in meta.sizes)}]"
    if meta.dim_order and list(meta.dim_order) != list(range(len(meta.sizes))):
        text += "{" + ",".join(str(axis) for axis in meta.dim_order) + "}"
    return text


def describe_quant(quant: QuantScheme) -> str:
    """The quantisation scheme in words, such as `packed int4, groups of 32, scales 'w.scale'`."""
    if not isinstance(quant, AffineGroup):
        return f"packed {_printable(quant.codec)}"
    levels = quant.quant_max - quant.quant_min + 1
    bits = f"int{levels.bit_length() - 1}" if levels > 1 and not levels & (levels - 1) else f"{levels} levels"
    groups = f"groups of {quant.group_size}" if quant.group_size else "one group a row"
    text = f"packed {bits} {quant.quant_min}..{quant.quant_max}, {groups}, scales {_quoted(quant.scale_data_key)}"
    if quant.zero_point_data_key:
        text += f", zero points {_quoted(quant.zero_point_data_key)}"
    return text


def describe_node(node: Node, metas: Metas) -> str:
    """One call as a line: results with their types, operator, arguments."""
    call = f"{_printable(short_target(node.target or '?'))}({', '.join(_arguments(node))})"
    results = ", ".join(_result(output, metas) for output in node.outputs)
    return f"{results} = {call}" if results else call


def short_target(target: str) -> str:
    """An operator's name without what all of them share: `aten.add.Tensor`."""
    return target.removeprefix("torch.ops.")


# -------------------------------------------------------------------------------------------------------- text


def _method_lines(method: Method) -> Iterator[str]:
    graph = method.graph
    metas = _metas(method)
    names = {node.name: node.metadata.get(NAME_KEY) for node in graph.nodes if node.op_kind is OpKind.PLACEHOLDER}
    yield f"method {_printable(method.name)}"
    yield from _section("inputs", [_typed(name, metas) + _called(name, names.get(name)) for name in graph.inputs])
    yield from _section("states", [*_stored_states(method, metas), *_zero_states(method, metas)])
    yield from _section(
        "constants",
        [
            f"{_typed(ref.name, metas)} = {ref.kind.name.lower()} {_quoted(ref.data_key)}"
            + (f", {describe_quant(ref.meta.quant)}" if ref.meta.quant else "")
            for ref in method.constants
            if not ref.mutated
        ],
    )
    yield "  graph"
    yield from _graph_lines(graph, metas, "    ")
    yield from _section(
        "outputs",
        [
            _typed(spec.name, metas)
            + ("" if spec.kind is OutputKind.USER_OUTPUT else f" -> {_target(spec.kind, spec.target or '?')}")
            for spec in method.output_specs
        ],
    )


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"  {title}"
        yield from (f"    {line}" for line in lines)


def _stored_states(method: Method, metas: Metas) -> list[str]:
    return [
        f"{_typed(ref.name, metas)} = state {_quoted(ref.data_key)}, starts with stored data"
        for ref in method.constants
        if ref.mutated
    ]


def _zero_states(method: Method, metas: Metas) -> list[str]:
    return [
        f"{_typed(spec.name, metas)} = state {_quoted(spec.fqn)}, starts as zeros" for spec in method.mutable_buffers
    ]


def _target(kind: OutputKind, target: str) -> str:
    return f"state {_quoted(target)}" if kind is OutputKind.BUFFER_MUTATION else f"input {_value(target)}"


def _called(name: str, called: str | None) -> str:
    return f"  # {_printable(called)}" if called and called != name else ""


def _graph_lines(graph: Graph, metas: Metas, indent: str) -> Iterator[str]:
    """The calls, each followed by the graphs nested in it, and the results."""
    for node in graph.nodes:
        if node.op_kind is OpKind.PLACEHOLDER:
            continue
        if node.op_kind is OpKind.OUTPUT:
            yield f"{indent}return {', '.join(_arguments(node))}".rstrip()
            continue
        source = node.metadata.get(SOURCE_KEY)
        yield indent + describe_node(node, metas) + (f"  # {_comment(source)}" if source else "")
        for argument in node.inputs:
            if isinstance(argument.arg, GraphArg):
                nested = argument.arg.graph
                inputs = ", ".join(_typed(name, nested.tensor_values) for name in nested.inputs)
                yield f"{indent}  {_printable(argument.arg.name)}({inputs}):"
                yield from _graph_lines(nested, nested.tensor_values, indent + "    ")


def _metas(method: Method) -> dict[str, TensorMeta]:
    return {**method.graph.tensor_values, **{ref.name: ref.meta for ref in method.constants}}


def _result(output: Output, metas: Metas) -> str:
    alias = f" alias {_value(output.alias_of)}" if output.alias_of else ""
    if output.kind is OutputValueKind.TENSOR_LIST:
        return "[" + ", ".join(_typed(name, metas) for name in output.names) + "]" + alias
    if output.kind is OutputValueKind.TENSOR:
        return _typed(output.name, metas) + alias
    return f"{_value(output.name)}: {output.kind.name.lower()}{alias}"


def _typed(name: str, metas: Metas) -> str:
    return f"{_value(name)}: {describe_tensor(metas.get(name))}"


def _arguments(node: Node) -> list[str]:
    arguments = list(node.inputs)
    while arguments and arguments[-1].name and isinstance(arguments[-1].arg, NoneArg):
        arguments.pop()
    texts = []
    leading = True
    for argument in arguments:
        leading = leading and isinstance(argument.arg, TensorArg | TensorListArg | OptionalTensorListArg)
        texts.append(_argument(argument, named=not leading))
    return texts


def _argument(argument: NamedArgument, named: bool) -> str:
    text = ("mut " if argument.mutated else "") + describe_argument(argument.arg)
    return f"{_printable(argument.name)}={text}" if argument.name and named else text


def describe_argument(arg: Argument) -> str:
    """One argument's value: `%x`, `[1, %n, -1]`, `float32`, `"mean"`."""
    match arg:
        case TensorArg(name):
            return _value(name)
        case NoneArg():
            return "None"
        case IntArg(value, ref) | FloatArg(value, ref) | BoolArg(value, ref):
            return _value(ref) if ref else str(value)
        case StringArg(text):
            return _literal(text)
        case ScalarTypeArg(dtype):
            return dtype.torch_name
        case IntListArg(values, refs):
            names = refs if len(refs) == len(values) else ("",) * len(values)
            items = [_value(ref) if ref else str(value) for value, ref in zip(values, names, strict=True)]
        case FloatListArg(values) | BoolListArg(values):
            items = [str(value) for value in values]
        case TensorListArg(names):
            items = [_value(name) for name in names]
        case OptionalTensorListArg(names, present):
            items = [_value(name) if has else "None" for name, has in zip(names, present, strict=False)]
        case GraphArg(name):
            return _printable(name)
    return f"[{', '.join(items)}]"


def _value(name: str) -> str:
    return f"%{_printable(name)}"


def _printable(text: str) -> str:
    """The text itself where it is one printable word, else quoted: files from anywhere are shown on terminals."""
    return text if text.isprintable() and text and not any(c in text for c in ' "\\,()=') else _literal(text)


def _comment(text: str) -> str:
    """The text up to the end of a line: quoted only where it does not print."""
    return text if text.isprintable() else _literal(text)


def _quoted(text: str) -> str:
    return f"'{text}'" if text.isprintable() and "'" not in text else _literal(text)


def _literal(text: str) -> str:
    """The text in double quotes, with escapes for what does not print."""
    escaped = [c if c.isprintable() and c not in '"\\' else json.dumps(c)[1:-1] for c in text]
    return '"' + "".join(escaped) + '"'


# -------------------------------------------------------------------------------------------------------- JSON


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        document: dict[str, Any] = {}
        if isinstance(value, Argument | AffineGroup | QuantScheme):
            document["type"] = type(value).__name__
        for field in fields(value):
            document[field.name] = _plain(getattr(value, field.name))
        return document
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


# --------------------------------------------------------------------------------------------------------- DOT


def _dot_graph(graph: Graph, metas: Metas, prefix: str, title: str, indent: str) -> Iterator[str]:
    """One cluster; `prefix` keeps the names of different graphs apart."""
    makers: dict[str, str] = {}
    yield f"{indent}subgraph cluster_{prefix} {{"
    yield f"{indent}  label={_dot_text(title)};"
    inputs = set(graph.inputs)
    for number, node in enumerate(graph.nodes):
        here = f"{prefix}_{number}"
        label, style = _dot_label(node, metas, inputs)
        yield f"{indent}  {here} [label={_dot_text(label)}{style}];"
        for output in node.outputs or (Output(node.name),):
            makers.update(dict.fromkeys(output.names or (output.name,), here))
        for name in _names_used(node):
            if name in makers:
                text = describe_tensor(metas[name]) if name in metas else ""
                yield f"{indent}  {makers[name]} -> {here} [label={_dot_text(text)}];"
        for place, argument in enumerate(node.inputs):
            if isinstance(argument.arg, GraphArg):
                nested = argument.arg.graph
                title = f"{_printable(argument.arg.name)} of {_printable(node.name)}"
                yield from _dot_graph(nested, nested.tensor_values, f"{here}_{place}", title, indent + "  ")
    yield f"{indent}}}"


def _dot_label(node: Node, metas: Metas, inputs: set[str]) -> tuple[str, str]:
    if node.op_kind is OpKind.OUTPUT:
        return "output", ", style=rounded"
    if node.op_kind is OpKind.PLACEHOLDER:
        text = f"{_printable(node.name)}\n{describe_tensor(metas.get(node.name))}"
        return text, ", style=rounded" if node.name in inputs else ", shape=cylinder"
    settings = [
        _argument(argument, named=True)
        for argument in node.inputs
        if not isinstance(argument.arg, TensorArg | TensorListArg | OptionalTensorListArg | NoneArg | GraphArg)
    ]
    return "\n".join([_printable(short_target(node.target or "?")), *settings]), ""


def _names_used(node: Node) -> dict[str, None]:
    """The values that a node reads, each once, in order."""
    names: list[str] = []
    for argument in node.inputs:
        match argument.arg:
            case TensorArg(name):
                names.append(name)
            case TensorListArg(several) | OptionalTensorListArg(several):
                names += [name for name in several if name]
            case IntArg(_, ref) | FloatArg(_, ref) | BoolArg(_, ref) if ref:
                names.append(ref)
            case IntListArg(_, refs):
                names += [ref for ref in refs if ref]
    return dict.fromkeys(names)


def _dot_text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\l") + '"'
