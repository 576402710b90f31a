"""Shape rules of the family `control`: operators with nested graphs, and assertions on data."""

from __future__ import annotations

from ptn_format.dtypes import ScalarType

from ptn_runtime.lowering.static import StaticGraph, Value
from ptn_runtime.shapes import Specs, Tensor, TensorSpec, shape_rule


@shape_rule("control.cond")
def cond(
    pred: Tensor, true_fn: StaticGraph, false_fn: StaticGraph, operands: tuple[Tensor, ...]
) -> tuple[TensorSpec, ...]:
    if pred.dtype is not ScalarType.BOOL or any(size != 1 for size in pred.shape):
        raise ValueError(f"the condition must be one bool, got {pred.dtype.torch_name}{list(pred.shape)}")
    _match_operands(true_fn, operands)
    _match_operands(false_fn, operands)
    then, otherwise = _specs(true_fn), _specs(false_fn)
    if then != otherwise:
        raise ValueError(f"the branches give different results: {_listed(then)} and {_listed(otherwise)}")
    return then


@shape_rule("control.while_loop")
def while_loop(
    cond_fn: StaticGraph,
    body_fn: StaticGraph,
    carried_inputs: tuple[Tensor, ...],
    additional_inputs: tuple[Tensor, ...] = (),
) -> tuple[TensorSpec, ...]:
    operands = (*carried_inputs, *additional_inputs)
    _match_operands(cond_fn, operands)
    _match_operands(body_fn, operands)
    test = _specs(cond_fn)
    if len(test) != 1 or test[0].dtype is not ScalarType.BOOL or any(size != 1 for size in test[0].shape):
        raise ValueError(f"the condition must be one bool, got {_listed(test)}")
    carried = tuple(TensorSpec(value.dtype, value.shape) for value in carried_inputs)
    after = _specs(body_fn)
    if after != carried:
        raise ValueError(f"the body turns {_listed(carried)} into {_listed(after)}: both must be the same")
    return carried


@shape_rule("control.map")
def map_(f: StaticGraph, xs: tuple[Tensor, ...], pos_args: tuple[Tensor, ...] = ()) -> tuple[TensorSpec, ...]:
    if not xs or any(not x.shape or x.shape[0] != xs[0].shape[0] for x in xs):
        raise ValueError(f"the mapped tensors need one leading axis, got {[list(x.shape) for x in xs]}")
    _match_operands(f, (*(TensorSpec(x.dtype, x.shape[1:]) for x in xs), *pos_args))
    return tuple(TensorSpec(spec.dtype, (xs[0].shape[0], *spec.shape)) for spec in _specs(f))


@shape_rule("control.scan")
def scan(
    combine_fn: StaticGraph,
    init: tuple[Tensor, ...],
    xs: tuple[Tensor, ...],
    additional_inputs: tuple[Tensor, ...] = (),
) -> tuple[TensorSpec, ...]:
    """The last carried values, then what the steps give, stacked along a new leading axis."""
    if not xs or any(not x.shape or x.shape[0] != xs[0].shape[0] for x in xs):
        raise ValueError(f"the scanned tensors need one leading axis, got {[list(x.shape) for x in xs]}")
    rows = (TensorSpec(x.dtype, x.shape[1:]) for x in xs)
    _match_operands(combine_fn, (*init, *rows, *additional_inputs))
    carried = tuple(TensorSpec(value.dtype, value.shape) for value in init)
    after = _specs(combine_fn)
    if after[: len(carried)] != carried:
        raise ValueError(
            f"a step turns {_listed(carried)} into {_listed(after[: len(carried)])}: both must be the same"
        )
    return carried + tuple(TensorSpec(spec.dtype, (xs[0].shape[0], *spec.shape)) for spec in after[len(carried) :])


@shape_rule("aten._assert_async.msg")
def assert_async(self: Tensor, assert_msg: str = "") -> Specs:
    if any(size != 1 for size in self.shape):
        raise ValueError(f"an assertion takes a tensor of one element, got {list(self.shape)}")
    return ()


def _specs(graph: StaticGraph) -> tuple[TensorSpec, ...]:
    specs = []
    for result in graph.results:
        if not isinstance(result, Value):
            raise ValueError(f"a nested graph returns {result!r}: only tensors can be returned")
        specs.append(TensorSpec(result.dtype, result.shape))
    return tuple(specs)


def _match_operands(graph: StaticGraph, operands: tuple[Tensor, ...]) -> None:
    got = tuple(TensorSpec(value.dtype, value.shape) for value in operands)
    want = tuple(TensorSpec(value.dtype, value.shape) for value in graph.inputs)
    if got != want:
        raise ValueError(f"nested graph '{graph.method}' takes {_listed(want)}, got {_listed(got)}")


def _listed(specs: tuple[TensorSpec, ...]) -> str:
    return "(" + ", ".join(f"{spec.dtype.torch_name}{list(spec.shape)}" for spec in specs) + ")"
