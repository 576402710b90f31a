"""Cases of the family `control`: nested graphs, and assertions on data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from ptn_format.dtypes import ScalarType as T
from ptn_format.graph import GraphArg, StringArg, TensorListArg

from ptn_runtime.conformance.case import Array, Case, floats
from ptn_runtime.conformance.programs import MethodBuilder, pack, static_meta

X = floats(3, 4)
PRED = static_meta(np.array(True))
COUNT = static_meta(np.array(0))


def method_of(args: Mapping[str, Any]) -> MethodBuilder:
    """A method that takes every argument of the case as an input."""
    method = MethodBuilder("forward")
    for name, array in args.items():
        method.input(name, *array.shape, dtype=T.from_numpy(array.dtype))
    return method


def finished(method: MethodBuilder, args: Mapping[str, Any], result: str) -> tuple[bytes, list[Array]]:
    """The package whose only method is `method`, and its inputs."""
    method.result(result)
    return pack([method.build()], {}), list(args.values())


def nested(op: str, other: int | str, **operands: Array) -> MethodBuilder:
    """A graph of one operator on its first operand."""
    graph = MethodBuilder("nested")
    for name, array in operands.items():
        graph.input(name, *array.shape, dtype=T.from_numpy(array.dtype))
    first = next(iter(operands))
    graph.call("y", op, static_meta(operands[first]), self=first, other=other)
    graph.result("y")
    return graph


def cond(args: Mapping[str, Any]) -> tuple[bytes, list[Array]]:
    """`x * 2 if pred else x - 1`."""
    method = method_of(args)
    then, otherwise = (nested(op, n, x=X).graph() for op, n in (("aten.mul.Scalar", 2), ("aten.sub.Scalar", 1)))
    graphs = {"true_fn": GraphArg("true", then), "false_fn": GraphArg("false", otherwise)}
    method.call("y", "higher_order.cond", static_meta(X), pred="pred", **graphs, operands=TensorListArg(("x",)))
    return finished(method, args, "y")


def while_loop(args: Mapping[str, Any]) -> tuple[bytes, list[Array]]:
    """`while count < 5: count += 1` with a float that doubles beside it; gives the float."""
    method = method_of(args)
    test = MethodBuilder("test")
    body = MethodBuilder("body")
    for graph in (test, body):
        graph.input("count", dtype=T.LONG)
        graph.input("x", *X.shape)
    test.call("go_on", "aten.lt.Scalar", PRED, self="count", other=5)
    test.result("go_on")
    body.call("next", "aten.add.Scalar", COUNT, self="count", other=1)
    body.call("twice", "aten.mul.Scalar", static_meta(X), self="x", other=2)
    body.result("next")
    body.result("twice")
    graphs = {"cond_fn": GraphArg("test", test.graph()), "body_fn": GraphArg("body", body.graph())}
    carried = {"carried_inputs": TensorListArg(("count", "x")), "additional_inputs": TensorListArg(())}
    metas = {"last": COUNT, "y": static_meta(X)}
    method.call_many(metas, "higher_order.while_loop", **graphs, **carried)
    return finished(method, args, "y")


def map_rows(args: Mapping[str, Any]) -> tuple[bytes, list[Array]]:
    """Adds `w` to each row of `x`."""
    method = method_of(args)
    row = nested("aten.add.Tensor", "w", row=np.zeros(4, np.float32), w=args["w"])
    tensors = {"xs": TensorListArg(("x",)), "pos_args": TensorListArg(("w",))}
    method.call("y", "higher_order.map_impl", static_meta(args["x"]), f=GraphArg("f", row.graph()), **tensors)
    return finished(method, args, "y")


def scan(args: Mapping[str, Any]) -> tuple[bytes, list[Array]]:
    """`total = total * w + x` along the rows of `xs`; gives the running totals, negated."""
    method = method_of(args)
    step = MethodBuilder("step")
    row = static_meta(args["total"])
    for name in ("total", "x", "w"):
        step.input(name, *args["total"].shape)
    step.call("decayed", "aten.mul.Tensor", row, self="total", other="w")
    step.call("next", "aten.add.Tensor", row, self="decayed", other="x")
    step.call("y", "aten.neg.default", row, self="next")
    step.result("next")
    step.result("y")
    tensors = {name: TensorListArg((value,)) for name, value in (("init", "total"), ("xs", "xs"))}
    metas = {"last": row, "rows": static_meta(args["xs"])}
    method.call_many(
        metas,
        "higher_order.scan",
        combine_fn=GraphArg("step", step.graph()),
        **tensors,
        additional_inputs=TensorListArg(("w",)),
    )
    method.result("last")
    return finished(method, args, "rows")


def assertion(args: Mapping[str, Any]) -> tuple[bytes, list[Array]]:
    """`x + 1` after an assertion that `ok` holds."""
    method = method_of(args)
    method.check("check", "aten._assert_async.msg", self="ok", assert_msg=StringArg("x must be fine"))
    method.call("y", "aten.add.Scalar", static_meta(X), self="x", other=1)
    return finished(method, args, "y")


def cases() -> Iterator[Case]:
    """Every case of the family."""
    for pred, expected in ((True, X * 2), (False, X - 1)):
        yield Case("control.cond", f"{pred}", {"pred": np.array(pred), "x": X}, (expected,), program=cond)
    for start in (0, 3, 7):
        args = {"count": np.array(start), "x": X}
        expected = X * np.float32(2 ** max(5 - start, 0))
        yield Case("control.while_loop", f"{max(5 - start, 0)} rounds", args, (expected,), program=while_loop)
    w = floats(4, seed=1)
    for rows in (1, 3):
        x = floats(rows, 4)
        yield Case("control.map", f"{rows} rows", {"x": x, "w": w}, (x + w,), program=map_rows)
    for rows in (1, 4):
        args = {"total": floats(3), "xs": floats(rows, 3, seed=2), "w": floats(3, seed=3)}
        total, totals = args["total"], []
        for x in args["xs"]:
            total = total * args["w"] + x
            totals.append(-total)
        yield Case("control.scan", f"{rows} rows", args, (total, np.stack(totals)), program=scan)
    op = "aten._assert_async.msg"
    yield Case(op, "holds", {"ok": np.array(True), "x": X}, (X + 1,), program=assertion)
    yield Case(op, "does not hold", {"ok": np.array(False), "x": X}, raises="InputError", program=assertion)
