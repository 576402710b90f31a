"""From a captured program to one method of the file: the whole graph, nothing left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from ptn_format.graph import (
    InputKind,
    Method,
    MutableBufferSpec,
    NamedTensorRef,
    OutputKind,
    OutputSpec,
    TensorMeta,
)
from ptn_format.signature import NAME_KEY, SIGNATURE_KEY, Constant, Leaf, Signature, Tree, named_leaves
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    CustomObjArgument,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.export.graph_signature import InputKind as TorchInput
from torch.export.graph_signature import OutputKind as TorchOutput

from ptn_export.bodies import Body, Problems, dtype_hint
from ptn_export.capture import Captured
from ptn_export.constants import ConstantConflictError, ConstantStore
from ptn_export.dims import SCALAR_TYPES, tensor_meta
from ptn_export.packing import find_packed, with_keys
from ptn_export.signature import make_signature

__all__ = ["SerializedMethod", "serialize_method", "shared_memory"]

_CONSTANT_KINDS = {
    TorchInput.PARAMETER: InputKind.PARAMETER,
    TorchInput.BUFFER: InputKind.BUFFER,
    TorchInput.CONSTANT_TENSOR: InputKind.CONSTANT_TENSOR,
}
_NUMBERS = (SymIntArgument, SymFloatArgument, SymBoolArgument)
"""User inputs that are numbers, and other ones from call to call."""
_INPUT_HINT = "use tensors, numbers and strings only"
_MUTATIONS = {
    TorchOutput.BUFFER_MUTATION: OutputKind.BUFFER_MUTATION,
    TorchOutput.USER_INPUT_MUTATION: OutputKind.USER_INPUT_MUTATION,
}


@dataclass(frozen=True, slots=True)
class _Binding:
    """A placeholder that a constant or buffer fills.

    Attributes:
        packed: what the file says of it if it is stored packed; a scheme's keys are names of placeholders.
    """

    name: str
    key: str
    kind: InputKind
    meta: TensorMeta
    mutated: bool
    packed: TensorMeta | None = None


@dataclass(slots=True)
class SerializedMethod:
    """A method but for its constants, whose final form depends on the other methods.

    Attributes:
        name: the method's name.
        body: its serialised graph.
        inputs: names of the user inputs.
        outputs: names of the tensor results.
        specs: what becomes of each of them.
        bindings: its constants and buffers.
    """

    name: str
    body: Body
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    specs: tuple[OutputSpec, ...] = ()
    bindings: list[_Binding] = field(default_factory=list)

    def read_only_keys(self) -> set[str]:
        """Keys of constants and of buffers that the method does not change."""
        return {binding.key for binding in self.bindings if not binding.mutated}

    def keys(self) -> set[str]:
        """Keys of all constants and buffers."""
        return {binding.key for binding in self.bindings}

    def packings(self) -> dict[str, TensorMeta | None]:
        """By key, what the file says of a constant if it is stored packed; None where the method reads it plain."""
        keys = {binding.name: binding.key for binding in self.bindings}
        return {
            binding.key: with_keys(binding.packed, keys) if binding.packed is not None else None
            for binding in self.bindings
        }

    def finish(self, without_data: set[str], packed: Mapping[str, TensorMeta]) -> Method:
        """The method.

        Args:
            without_data: buffers that start as zeros instead of having bytes in the package.
            packed: what the file says of constants that are stored packed.
        """
        constants, buffers = [], []
        for binding in self.bindings:
            if binding.key in without_data:
                buffers.append(MutableBufferSpec(binding.name, binding.key))
                self.body.tensor_values[binding.name] = binding.meta
            else:
                meta = packed.get(binding.key, binding.meta)
                if binding.name in self.outputs:
                    # Executorch 1.5.1 looks nowhere else for the type of a result.
                    self.body.tensor_values[binding.name] = meta
                constants.append(NamedTensorRef(binding.name, binding.key, meta, binding.kind, binding.mutated))
        graph = self.body.graph(self.inputs, self.outputs)
        return Method(self.name, graph, tuple(constants), self.specs, tuple(buffers))


def serialize_method(
    name: str, original: ExportedProgram, captured: Captured, store: ConstantStore, problems: Problems
) -> SerializedMethod:
    """Serialises one method; what cannot be held is added to `problems`.

    Args:
        name: the method's name.
        original: the program as the user exported it; its call spec is the signature.
        captured: the decomposed program, after all passes.
        store: takes the method's constants.
        problems: takes what is wrong.
    """
    program = captured.program
    body = Body(program.graph_module, program.range_constraints, problems)
    method = SerializedMethod(name, body)
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs = program.graph_signature.output_specs
    _merge_tied(program, {spec.target for spec in specs if spec.kind is TorchOutput.BUFFER_MUTATION and spec.target})
    output_specs = _ordered_results(program, problems)
    signature = _signature(original, program)
    display = {leaf.index: text for p in signature.parameters for text, leaf in named_leaves(p.name, p.tree)}

    mutated = {spec.target for _, spec in output_specs if spec.kind is TorchOutput.BUFFER_MUTATION}
    _check_shared_memory(program, mutated, captured, problems)
    packed = find_packed(program.graph_module, _read_only_data(program, mutated), problems)
    inputs: list[str] = []
    for spec in program.graph_signature.input_specs:
        node = placeholders[spec.arg.name]
        if spec.kind in _CONSTANT_KINDS:
            if node.users or spec.target in mutated:
                _bind(node, spec, captured, method, store, problems, spec.target in mutated, packed.get(node.name))
        elif spec.kind is TorchInput.USER_INPUT and isinstance(spec.arg, (TensorArgument, *_NUMBERS)):
            add = body.placeholder if isinstance(spec.arg, TensorArgument) else body.number
            add(node, {NAME_KEY: display.get(len(inputs), node.name)})
            inputs.append(node.name)
        elif not (spec.kind is TorchInput.USER_INPUT and isinstance(spec.arg, ConstantArgument)):
            _refuse_input(spec, node, problems)
    body.calls()
    results = [result for result, _ in output_specs]
    method.inputs = tuple(inputs)
    method.outputs = body.output(results, {SIGNATURE_KEY: signature.to_json()})
    method.specs = _output_specs(output_specs, captured)
    return method


# Inputs


def _bind(
    node: fx.Node,
    spec: Any,
    captured: Captured,
    method: SerializedMethod,
    store: ConstantStore,
    problems: Problems,
    mutated: bool,
    packed: TensorMeta | None,
) -> None:
    """Binds a placeholder to the parameter, buffer or constant that fills it."""
    method.body.placeholder(node, constant=True)  # in any case, so that its readers are no problems of their own
    key = captured.fqn(spec.target)
    tensor = _data(captured.program, spec.target)
    place = f"'{key}'"
    if tensor is None:
        problems.add(
            "constant",
            "the exported program holds no data for it",
            "export again without changing `state_dict` or `constants` of the exported program",
            place=place,
        )
        return
    reason = _unusable(tensor)
    if reason is not None:
        problems.add("constant", *reason, place=place)
        return
    kind = _CONSTANT_KINDS[spec.kind]
    try:
        key = store.add(key, tensor, kind, method.name)
    except ConstantConflictError as conflict:
        problems.add(
            "constant",
            f"methods '{conflict.method}' and '{method.name}' use this name for different data: {conflict}",
            "export all methods from one module, or give the parts different names",
            place=place,
        )
        return
    meta = tensor_meta(tensor, captured.program.range_constraints)
    method.bindings.append(_Binding(node.name, key, kind, meta, mutated, packed))


def _data(program: ExportedProgram, target: str) -> torch.Tensor | None:
    """The tensor behind a lifted input."""
    data = program.state_dict.get(target, program.constants.get(target))
    return data if isinstance(data, torch.Tensor) else None


def _read_only_data(program: ExportedProgram, mutated: set[str]) -> dict[str, torch.Tensor]:
    """By placeholder, the constants and the buffers that the method does not change."""
    found = {}
    for spec in program.graph_signature.input_specs:
        tensor = _data(program, spec.target) if spec.target and spec.target not in mutated else None
        if spec.kind in _CONSTANT_KINDS and tensor is not None and _unusable(tensor) is None:
            found[spec.arg.name] = tensor
    return found


def _unusable(tensor: torch.Tensor) -> tuple[str, str] | None:
    """Reason and hint where a tensor cannot be stored."""
    if tensor.is_meta or type(tensor).__name__ == "FakeTensor":
        return "it has no data (a meta or fake tensor)", "load the weights before the export"
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return f"it is a {layout} tensor, which the format cannot hold", "convert it with `.to_dense()`"
    if tensor.is_quantized:
        return "it is a quantized tensor of PyTorch's old kind", "quantise with torchao, or call `.dequantize()`"
    if tensor.dtype not in SCALAR_TYPES:
        dtype = str(tensor.dtype).removeprefix("torch.")
        return f"the format has no element type {dtype}", dtype_hint(tensor.dtype)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return (
            f"it is a {type(tensor).__name__}, a tensor subclass that PyTorch did not unwrap",
            "convert it to plain tensors before the export",
        )
    return None


def _refuse_input(spec: Any, node: fx.Node, problems: Problems) -> None:
    if isinstance(spec.arg, CustomObjArgument) or spec.kind is TorchInput.CUSTOM_OBJ:
        problems.add(
            "input", "it is a script object, which the format cannot hold", "use tensors only", place=f"'{node.name}'"
        )
    elif spec.kind is not TorchInput.TOKEN:  # tokens order operators with side effects, which are refused by name
        kind = spec.kind.name.lower()
        problems.add(
            "input", f"an input of kind {kind} has no meaning in a package", _INPUT_HINT, place=f"'{node.name}'"
        )


# Results


def _ordered_results(program: ExportedProgram, problems: Problems) -> list[tuple[Any, Any]]:
    """Each result (a node or a Python value) with its spec: mutations first."""
    values = program.graph.output_node().args[0]
    assert isinstance(values, list | tuple)
    pairs: list[tuple[Any, Any]] = list(zip(values, program.graph_signature.output_specs, strict=True))
    for _, spec in pairs:
        if spec.kind is TorchOutput.PARAMETER_MUTATION:
            problems.add(
                "output",
                f"the model changes its parameter '{spec.target}', which is fixed in a package",
                "make it a buffer (`register_buffer`)",
                place=f"'{spec.target}'",
            )
        elif spec.kind not in (*_MUTATIONS, TorchOutput.USER_OUTPUT, TorchOutput.TOKEN):
            problems.add(
                "output",
                f"a result of kind {spec.kind.name.lower()} has no meaning in a package",
                "export the inference graph: torch.export.export(model.eval(), ...)",
                place=f"'{spec.arg.name}'",
            )
    order = {TorchOutput.BUFFER_MUTATION: 0, TorchOutput.USER_INPUT_MUTATION: 1}
    return sorted(pairs, key=lambda pair: order.get(pair[1].kind, 2))


def _output_specs(pairs: Sequence[tuple[Any, Any]], captured: Captured) -> tuple[OutputSpec, ...]:
    """One spec per tensor result."""
    specs = []
    for value, spec in pairs:
        if not isinstance(value, fx.Node) or not isinstance(value.meta.get("val"), torch.Tensor):
            continue
        kind = _MUTATIONS.get(spec.kind, OutputKind.USER_OUTPUT)
        target = None
        if kind is OutputKind.BUFFER_MUTATION:
            target = captured.fqn(spec.target)
        elif kind is OutputKind.USER_INPUT_MUTATION:
            target = spec.target
        specs.append(OutputSpec(value.name, kind, target))
    return tuple(specs)


def _signature(original: ExportedProgram, program: ExportedProgram) -> Signature:
    """The user's signature; a leaf that was fixed at export keeps its value."""
    inputs: list[Tree] = []
    count = 0
    for spec in program.graph_signature.input_specs:
        if spec.kind is not TorchInput.USER_INPUT:
            continue
        if isinstance(spec.arg, ConstantArgument):
            inputs.append(Constant(spec.arg.value))
        else:
            inputs.append(Leaf(count))
            count += 1
    users = sum(spec.kind is TorchOutput.USER_OUTPUT for spec in program.graph_signature.output_specs)
    return make_signature(original, inputs, [Leaf(i) for i in range(users)])


# State


def _check_shared_memory(program: ExportedProgram, mutated: set[str], captured: Captured, problems: Problems) -> None:
    """Refuses a mutated buffer whose memory another constant shares: the graph treats them as separate."""
    for left, right in shared_memory(program):
        for key, other in ((left, right), (right, left)):
            if key in mutated:
                problems.add(
                    "buffer",
                    f"the method changes '{captured.fqn(key)}', whose memory '{captured.fqn(other)}' shares; "
                    "the change would not reach it",
                    "give each buffer its own memory (`.clone()`)",
                    place=f"'{captured.fqn(key)}'",
                )


def shared_memory(program: ExportedProgram) -> list[tuple[str, str]]:
    """Pairs of names that lie in the same memory, wholly or in part, at least one of them a buffer."""
    buffers = {spec.target for spec in program.graph_signature.input_specs if spec.kind is TorchInput.BUFFER}
    spans = []
    for spec in program.graph_signature.input_specs:
        tensor = _data(program, spec.target) if spec.target else None
        if spec.target and tensor is not None and _unusable(tensor) is None and tensor.numel():
            start = tensor.data_ptr()
            count = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
            spans.append((start, start + count * tensor.element_size(), spec.target))
    spans.sort()
    pairs = []
    for i, (_, end, name) in enumerate(spans):
        for start, _, other in spans[i + 1 :]:
            if start >= end:
                break
            if name in buffers or other in buffers:
                pairs.append((min(name, other), max(name, other)))
    return pairs


def _merge_tied(program: ExportedProgram, mutated: set[str]) -> None:
    """Lets one name stand for several that are the same tensor, such as tied weights."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    first: dict[Any, fx.Node] = {}
    for spec in program.graph_signature.input_specs:
        tensor = _data(program, spec.target) if spec.target else None
        if tensor is None or spec.target in mutated or _unusable(tensor) is not None or not tensor.numel():
            continue
        node = placeholders[spec.arg.name]
        identity = (tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())
        known = first.setdefault(identity, node)
        if known is not node:
            node.replace_all_uses_with(known)
