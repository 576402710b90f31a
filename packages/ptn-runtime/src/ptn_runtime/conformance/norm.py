"""Cases of the family `norm`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ptn_format.dtypes import ScalarType as T

from ptn_runtime.conformance.case import Case, floats, integers

WEIGHTS = frozenset({"weight", "bias", "running_mean", "running_var"})
NAN, INF = float("nan"), float("inf")


def softmax() -> Iterator[Case]:
    for name in ("_softmax", "_log_softmax"):
        op = f"aten.{name}.default"
        for dtype in (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE):
            yield Case(op, dtype.torch_name, {"self": floats(3, 33, dtype=dtype), "dim": -1, "half_to_float": False})
        for dim in (0, 1, 2, -2):
            yield Case(op, f"dim {dim}", {"self": floats(2, 3, 4), "dim": dim, "half_to_float": False})
        yield Case(op, "rank 6", {"self": floats(2, 1, 2, 1, 3, 5), "dim": 4, "half_to_float": False})
        yield Case(op, "large", {"self": floats(3, 9, low=-500, high=500), "dim": 1, "half_to_float": False})
        rows = np.array([[-INF, -INF, -INF], [-INF, 0, 1], [INF, 0, 1], [NAN, 0, 1]], np.float32)
        yield Case(op, "inf and nan rows", {"self": rows, "dim": 1, "half_to_float": False})
        yield Case(op, "one element", {"self": floats(4, 1), "dim": 1, "half_to_float": False})
        yield Case(op, "0-d", {"self": floats(), "dim": 0, "half_to_float": False})
        yield Case(op, "empty", {"self": np.zeros((0, 4), np.float32), "dim": 1, "half_to_float": False})
    weights = np.full((1, 3), 1 / 3, np.float32)
    yield Case(
        "aten._softmax.default",
        "equal",
        {"self": np.zeros((1, 3), np.float32), "dim": 1, "half_to_float": False},
        (weights,),
    )


def layer_norms() -> Iterator[Case]:
    for dtype in (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE):
        args = {
            "input": floats(3, 5, 32, dtype=dtype),
            "normalized_shape": (32,),
            "weight": floats(32, dtype=dtype, low=0.5, high=1.5),
            "bias": floats(32, dtype=dtype, seed=1),
            "eps": 1e-5,
        }
        yield Case("aten.native_layer_norm.default", dtype.torch_name, args, constants=WEIGHTS)
        rms = {k: v for k, v in args.items() if k != "bias"}
        yield Case("aten.rms_norm.default", dtype.torch_name, rms, constants=WEIGHTS)
    x = floats(2, 3, 4, 8)
    plain = {"input": x, "normalized_shape": (8,), "weight": None, "bias": None, "eps": 1e-12}
    yield Case("aten.native_layer_norm.default", "no weight", plain)
    over = {"normalized_shape": (4, 8), "weight": floats(4, 8), "bias": floats(4, 8, seed=1), "eps": 1e-5}
    yield Case("aten.native_layer_norm.default", "two axes", {"input": x, **over}, constants=WEIGHTS)
    yield Case(
        "aten.native_layer_norm.default", "offset", {**plain, "input": x + 1000, "eps": 1e-5}, rtol=1e-3, atol=1e-3
    )
    yield Case(
        "aten.rms_norm.default",
        "no weight, no eps",
        {"input": x, "normalized_shape": (8,), "weight": None, "eps": None},
    )
    yield Case(
        "aten.rms_norm.default",
        "two axes",
        {"input": x, "normalized_shape": (4, 8), "weight": floats(4, 8), "eps": 1e-6},
        constants=WEIGHTS,
    )
    yield Case(
        "aten.rms_norm.default",
        "zeros",
        {"input": np.zeros((2, 8), np.float32), "normalized_shape": (8,), "weight": None, "eps": 1e-5},
    )


def group_and_batch_norms() -> Iterator[Case]:
    for name, shape, group in (
        ("4-d", (2, 6, 4, 5), 3),
        ("3-d", (2, 8, 7), 2),
        ("one group", (1, 4, 3, 3), 1),
        ("instance", (2, 4, 3, 3), 4),
    ):
        channels = shape[1]
        spatial = int(np.prod(shape[2:]))
        args = {
            "input": floats(*shape),
            "weight": floats(channels, low=0.5, high=1.5),
            "bias": floats(channels, seed=1),
            "N": shape[0],
            "C": channels,
            "HxW": spatial,
            "group": group,
            "eps": 1e-5,
        }
        yield Case("aten.native_group_norm.default", name, args, constants=WEIGHTS)
    shapes: dict[str, tuple[int, ...]] = {"4-d": (2, 6, 4, 5), "3-d": (2, 6, 7), "2-d": (3, 6), "5-d": (1, 6, 2, 3, 4)}
    for name, sizes in shapes.items():
        args = {
            "input": floats(*sizes),
            "weight": floats(6, low=0.5, high=1.5),
            "bias": floats(6, seed=1),
            "running_mean": floats(6, seed=2),
            "running_var": floats(6, low=0.5, high=2, seed=3),
            "momentum": 0.1,
            "eps": 1e-5,
        }
        op = "aten._native_batch_norm_legit_no_training.default"
        yield Case(op, name, args, constants=WEIGHTS)
        yield Case(op, f"{name}, no weight", {**args, "weight": None, "bias": None}, constants=WEIGHTS)


def with_dtypes() -> Iterator[Case]:
    """Softmax as users call it, which may change the dtype."""
    rows = np.array([[-INF, -INF, -INF], [-INF, 0, 1], [NAN, 0, 1]], np.float32)
    for name in ("softmax.int", "log_softmax.int", "_safe_softmax.default"):
        op = f"aten.{name}"
        for dtype in (T.FLOAT, T.HALF, T.BFLOAT16, T.DOUBLE):
            yield Case(op, dtype.torch_name, {"self": floats(3, 9, dtype=dtype), "dim": -1})
        yield Case(op, "float16 to float32", {"self": floats(3, 9, dtype=T.HALF), "dim": 0, "dtype": T.FLOAT})
        if name != "_safe_softmax.default":
            yield Case(op, "int64 to float32", {"self": integers(3, 9), "dim": 1, "dtype": T.FLOAT})
        yield Case(op, "rows of -inf and nan", {"self": rows, "dim": 1})
    masked = {"self": rows[:1], "dim": 1}
    yield Case("aten._safe_softmax.default", "a masked row gives zeros", masked, (np.zeros((1, 3), np.float32),))


def more_norms() -> Iterator[Case]:
    x = floats(2, 6, 4, 5)
    weight, bias = floats(6, low=0.5, high=1.5), floats(6, seed=1)
    last = {"normalized_shape": (5,), "weight": floats(5, low=0.5, high=1.5)}
    layer = {"input": x, **last, "bias": floats(5, seed=1), "eps": 1e-5}
    yield Case("aten.layer_norm.default", "float32", layer, constants=WEIGHTS)
    yield Case("aten.layer_norm.default", "no weight", {"input": x, "normalized_shape": (4, 5)})
    half = {key: value.astype(np.float16) if isinstance(value, np.ndarray) else value for key, value in layer.items()}
    yield Case("aten.layer_norm.default", "float16", half, constants=WEIGHTS, atol=5e-3)
    for eps in (1e-5, None):
        yield Case("aten._fused_rms_norm.default", f"eps {eps}", {"input": x, **last, "eps": eps}, constants=WEIGHTS)
    group = {"input": x, "num_groups": 3, "weight": weight, "bias": bias, "eps": 1e-5}
    yield Case("aten.group_norm.default", "three groups", group, constants=WEIGHTS)
    yield Case("aten.group_norm.default", "no weight", {"input": floats(2, 4, 7), "num_groups": 2})
    affine = {"weight": weight, "bias": bias}
    running = {"running_mean": floats(6, seed=2), "running_var": floats(6, low=0.5, high=2, seed=3)}
    rates = {"momentum": 0.1, "eps": 1e-5}
    yield Case("aten._native_batch_norm_legit.no_stats", "float32", {"input": x, **affine, "training": True, **rates},
               constants=WEIGHTS)  # fmt: skip
    for training in (False, True):
        name = "training" if training else "inference"
        args = {"input": x, **affine, **running, "training": training, **rates}
        yield Case("aten._native_batch_norm_legit_functional.default", name, args, constants=WEIGHTS)
    legit = {"input": x, **affine, **running, "training": False, **rates}
    yield Case("aten._native_batch_norm_legit.default", "inference", legit, constants=WEIGHTS)
    inference = {"input": x, **affine, **running, "training": False, **rates, "cudnn_enabled": False}
    yield Case("aten.batch_norm.default", "inference", inference, constants=WEIGHTS)
    bare = {**inference, "weight": None, "bias": None}
    yield Case("aten.batch_norm.default", "no weight", bare, constants=WEIGHTS)
    batch = {**inference, "running_mean": None, "running_var": None, "training": True}
    yield Case("aten.batch_norm.default", "statistics of the batch", batch, constants=WEIGHTS)
    instance = {key: value for key, value in inference.items() if key != "training"}
    yield Case("aten.instance_norm.default", "running", {**instance, "use_input_stats": False}, constants=WEIGHTS)
    own = {**instance, "running_mean": None, "running_var": None, "use_input_stats": True}
    yield Case("aten.instance_norm.default", "of the input", own, constants=WEIGHTS)
    yield Case("aten.native_dropout.default", "inference", {"input": x, "p": 0.5, "train": False})
    drop = {"input": np.ones((40, 5), np.float32), "p": 0.5, "train": True}
    yield Case("aten.native_dropout.default", "training", drop, compare="form", within=(0.0, 2.5))


def backward() -> Iterator[Case]:
    """Gradients of norms; their statistics are given, as the forward pass returned them."""
    mask = (True, True, True)
    for dtype in (T.FLOAT, T.DOUBLE):
        x, gradient = floats(2, 6, 4, 5, dtype=dtype), floats(2, 6, 4, 5, dtype=dtype, seed=1)
        for count in (1, 2):
            sizes = (4, 5)[2 - count :]
            statistics = (2, 6, 4, 5)[: 4 - count] + (1,) * count
            args = {
                "grad_out": gradient,
                "input": x,
                "normalized_shape": sizes,
                "mean": floats(*statistics, dtype=dtype, low=-0.5, high=0.5),
                "rstd": floats(*statistics, dtype=dtype, low=0.5, high=1, seed=2),
                "weight": floats(*sizes, dtype=dtype, seed=3),
                "bias": floats(*sizes, dtype=dtype, seed=4),
                "output_mask": mask,
            }
            name = f"{dtype.torch_name}, {count} axes"
            yield Case("aten.native_layer_norm_backward.default", name, args, constants=WEIGHTS)
        for groups in (1, 3):
            args = {
                "grad_out": gradient,
                "input": x,
                "mean": floats(2, groups, dtype=dtype, low=-0.5, high=0.5),
                "rstd": floats(2, groups, dtype=dtype, low=0.5, high=1, seed=2),
                "weight": floats(6, dtype=dtype, seed=3),
                "N": 2,
                "C": 6,
                "HxW": 20,
                "group": groups,
                "output_mask": mask,
            }
            name = f"{dtype.torch_name}, {groups} groups"
            yield Case("aten.native_group_norm_backward.default", name, args, constants=WEIGHTS)


def cases() -> Iterator[Case]:
    """Every case of the family."""
    yield from backward()
    yield from with_dtypes()
    yield from more_norms()
    yield from softmax()
    yield from layer_norms()
    yield from group_and_batch_norms()
