"""`check`: exports a module and compares what the package's graph computes with eager PyTorch."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import operator
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import NativeProgram, to_native
from ptn_format import graph as g
from ptn_format.package import open_package
from ptn_format.signature import SIGNATURE_KEY, Container, Leaf, Signature, Tree, build
from ptn_format.validate import validate_program
from ptn_runtime.errors import UnsupportedMethodError
from torch.utils import _pytree as pytree

_SCALAR_FUNCTIONS = {"_operator": operator, "math": math, "torch": torch, "builtins": __builtins__}


class Interpreter:
    """Runs a native program with PyTorch's own operators: tells faults of the exporter from those of a runtime."""

    def __init__(self, native: NativeProgram) -> None:
        # What a package holds is what counts, so the program takes the way through its bytes.
        file = io.BytesIO()
        native.save(file)
        package = open_package(file.getvalue())
        self.program = package.program
        assert repr(self.program) == repr(native.program)  # as text, because NaN is not equal to itself
        assert validate_program(self.program, {key: package.constant_info(key) for key in package.constant_keys}) == []
        self.state: dict[str, torch.Tensor] = {}
        self.constants = {key: _tensor(package.constant(key)) for key in package.constant_keys}

    def run(self, method_name: str, args: Sequence[Any], kwargs: Mapping[str, Any] = {}) -> Any:
        method = self.program.method(method_name)
        signature = Signature.from_json(method.graph.nodes[-1].metadata[SIGNATURE_KEY])
        inputs = _bind(signature, args, kwargs)
        values: dict[str, Any] = {}
        assert len(inputs) == len(method.graph.inputs)
        for name, tensor in zip(method.graph.inputs, inputs, strict=True):
            meta = method.graph.tensor_values[name]
            assert tensor.dim() == len(meta.sizes), name
            assert all(dim.contains(size) for dim, size in zip(meta.sizes, tensor.shape, strict=True)), name
            assert meta.dtype.torch_name == str(tensor.dtype).removeprefix("torch."), name
            values[name] = tensor
        for ref in method.constants:
            if ref.mutated:
                self.state.setdefault(ref.data_key, self.constants[ref.data_key].clone())
            values[ref.name] = self.state.get(ref.data_key, self.constants[ref.data_key])
        for spec in method.mutable_buffers:
            meta = method.graph.tensor_values[spec.name]
            shape = [dim.min for dim in meta.sizes]
            dtype = getattr(torch, meta.dtype.torch_name)
            values[spec.name] = self.state.setdefault(spec.fqn, torch.zeros(shape, dtype=dtype))
        # Copies, because a result may be an input as it was before the call changes it.
        results = [r.clone() if isinstance(r, torch.Tensor) else r for r in self._body(method.graph, values)]
        mutations = [s for s in method.output_specs if s.kind is not g.OutputKind.USER_OUTPUT]
        for spec, new in zip(mutations, results, strict=False):
            if spec.kind is g.OutputKind.BUFFER_MUTATION:
                assert spec.target in self.state
                self.state[spec.target] = new
            else:
                values[spec.target].copy_(new)
        visible = results[len(mutations) :]
        return build(signature.result, lambda i: visible[i])

    def _body(self, graph: g.Graph, values: dict[str, Any]) -> list[Any]:
        for node in graph.nodes:
            if node.op_kind is g.OpKind.CALL_FUNCTION:
                self._call(graph, node, values)
        return [self._value(item.arg, values) for item in graph.nodes[-1].inputs]

    def _call(self, graph: g.Graph, node: g.Node, values: dict[str, Any]) -> None:
        target = node.target or ""
        positional = [self._value(item.arg, values) for item in node.inputs if not item.name]
        named = {item.name: self._value(item.arg, values) for item in node.inputs if item.name}
        if target == "torch.ops.higher_order.cond":
            predicate, yes, no, operands = positional
            results: Any = (yes if bool(predicate) else no)(*operands)
        elif target == "torch.ops.higher_order.map_impl":
            body, xs, extra = positional
            rows = [body(*(x[i] for x in xs), *extra) for i in range(len(xs[0]))]
            results = [torch.stack(column) for column in zip(*rows, strict=True)]
        elif target == "torch.ops.higher_order.scan":
            body, carried, xs, extra = positional
            rows = []
            for i in range(len(xs[0])):
                step = body(*carried, *(x[i] for x in xs), *extra)
                carried = step[: len(carried)]
                rows.append(step[len(carried) :])
            results = [*carried, *(torch.stack(column) for column in zip(*rows, strict=True))]
        elif target == "torch.ops.higher_order.while_loop":
            condition, body, carried, extra = positional
            results = list(carried)
            while bool(condition(*results, *extra)[0]):
                results = body(*results, *extra)
        elif target.startswith("torch.ops."):
            namespace, packet, overload = target.removeprefix("torch.ops.").split(".")
            op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
            results = op(*positional, **named)
        else:
            module, _, name = target.rpartition(".")
            home = _SCALAR_FUNCTIONS[module]
            function = home[name] if isinstance(home, dict) else getattr(home, name)
            results = function(*positional, **named)
        outputs = [name for output in node.outputs for name in (output.names or (output.name,))]
        if not outputs:
            return
        if not isinstance(results, list | tuple):
            results = [results]
        for name, result in zip(outputs, results, strict=True):
            values[name] = result
            if isinstance(result, torch.Tensor):
                meta = graph.tensor_values[name]
                if result.is_complex():  # described as a real tensor with a last axis of 2
                    result = torch.view_as_real(result)
                assert str(result.dtype) == f"torch.{meta.dtype.torch_name}", node
                assert all(d.contains(n) for d, n in zip(meta.sizes, result.shape, strict=True)), (node, result.shape)

    def _value(self, argument: g.Argument, values: dict[str, Any]) -> Any:
        match argument:
            case g.TensorArg(name):
                return values[name]
            case g.NoneArg():
                return None
            case g.IntArg(value, ref) | g.FloatArg(value, ref) | g.BoolArg(value, ref):
                return values[ref] if ref else value
            case g.StringArg(value):
                return getattr(torch, value.removeprefix("torch.")) if value.startswith("torch.") else value
            case g.ScalarTypeArg(value):
                return getattr(torch, value.torch_name)
            case g.IntListArg(numbers, refs):
                return [values[ref] if ref else n for n, ref in zip(numbers, refs or [""] * len(numbers), strict=True)]
            case g.FloatListArg(numbers) | g.BoolListArg(numbers):
                return list(numbers)
            case g.TensorListArg(names) | g.OptionalTensorListArg(names, _):
                return [values[name] if name else None for name in names]
            case g.GraphArg(_, graph):
                return lambda *operands: self._body(graph, dict(zip(graph.inputs, operands, strict=True)))


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A copy for the runtime."""
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().copy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy().copy()


def _tensors(value: Any) -> Any:
    """What the runtime returned, with tensors in the place of arrays."""
    return pytree.tree_map_only(np.ndarray, _tensor, value)


def _bind(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The flat inputs: every leaf in order that is not fixed; numbers as tensors of no axes."""
    positional = [p for p in signature.parameters if not p.keyword_only]
    assert len(positional) == len(args)
    values = [*args, *(kwargs[p.name] for p in signature.parameters if p.keyword_only)]
    trees = [tree for p in signature.parameters for tree in _flat(p.tree)]
    pairs = zip(trees, pytree.tree_leaves(values), strict=True)
    return [torch.as_tensor(leaf) for tree, leaf in pairs if isinstance(tree, Leaf)]


def _flat(tree: Tree) -> list[Tree]:
    return [leaf for item in tree.items for leaf in _flat(item)] if isinstance(tree, Container) else [tree]


def assert_same(actual: Any, expected: Any, *, side: str = "", **tolerance: Any) -> None:
    """Compares results leaf by leaf; element types and shapes must be equal. `side` begins the messages."""
    left, right = pytree.tree_leaves(actual), pytree.tree_leaves_with_path(expected)
    assert len(left) == len(right)
    for a, (path, b) in zip(left, right, strict=True):
        place = f"{side}result{pytree.keystr(path)}"
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, equal_nan=True, msg=lambda text, p=place: f"{p}: {text}", **tolerance)
        else:
            assert (type(a), a) == (type(b), b), place


def check_module(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    *more: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    engines: Sequence[str] = ("reference",),
    refused: Mapping[str, str] | None = None,
    expect: Callable[[Any], None] | None = None,
    exact: bool = False,
    **tolerance: Any,
) -> NativeProgram:
    """Exports `module` and compares calls in sequence with `args`, then each of `more`, with eager PyTorch.

    The package's graph runs with PyTorch's own operators, and in the runtime on each of `engines`. State that the
    module keeps is carried from call to call on all sides. An engine among `refused` must refuse the method, with a
    reason that the pattern describes. `expect` gets the result of the first call, from every side, for what is known
    without running eager mode. `exact` demands equality, to the bit, of PyTorch's own operators.
    """
    kwargs = kwargs or {}
    with warnings.catch_warnings(action="ignore"):  # PyTorch's own, about its own layers
        exported = torch.export.export(module, args, dict(kwargs), dynamic_shapes=dynamic_shapes)
    native = to_native(exported)
    interpreter = Interpreter(native)
    file = io.BytesIO()
    native.save(file)
    refused = refused or {}
    for engine, reason in refused.items():
        _assert_refused(file.getvalue(), engine, reason)
    with contextlib.ExitStack() as stack:
        models = {
            engine: stack.enter_context(ptn_runtime.load(file.getvalue(), engine=engine))
            for engine in engines
            if engine not in refused
        }
        for i, call in enumerate((args, *more)):
            original = (call, kwargs)
            theirs, ours = copy.deepcopy(original), copy.deepcopy(original)
            with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                expected = module(*theirs[0], **theirs[1])
                actual = interpreter.run("forward", ours[0], ours[1])
            assert_same(actual, expected, **({"rtol": 0, "atol": 0} if exact else tolerance))
            assert_same(ours, theirs, **tolerance)  # inputs that the module changes
            results = [expected, actual]
            for engine, model in models.items():
                # Fixed values are no inputs of a package, but may be given again.
                arrays = pytree.tree_map_only(torch.Tensor, _array, original)
                results.append(_tensors(model(*arrays[0], **arrays[1])))
                assert_same(results[-1], expected, side=f"{engine}: ", **tolerance)
                assert_same(_tensors(arrays), theirs, side=f"{engine}: ", **tolerance)
            if expect is not None and i == 0:
                for result in results:
                    expect(result)
    return native


def _assert_refused(package: bytes, engine: str, reason: str) -> None:
    """The engine says of every node that it cannot run why, and who can."""
    with pytest.raises(UnsupportedMethodError, match=reason) as caught:
        ptn_runtime.load(package, engine=engine)
    assert caught.value.nodes
    for node in caught.value.nodes:
        assert node.reason
        assert "reference" in node.engines


@pytest.fixture
def check() -> Callable[..., NativeProgram]:
    return check_module


@pytest.fixture
def interpret() -> type[Interpreter]:
    return Interpreter


@pytest.fixture(name="assert_same")
def assert_same_fixture() -> Callable[..., None]:
    return assert_same


@pytest.fixture
def importable(tmp_path, monkeypatch):
    """`importable(name, source)` writes a module into the test's folder, which is the current one and on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    written = []

    def write(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)
