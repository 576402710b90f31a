"""Which operators of the catalogue run: what is missing is listed here with its reason, and nothing else is."""

from __future__ import annotations

import time

import numpy as np
from ptn_engine_ggml.engine import GgmlEngine
from ptn_engine_ggml.lower.registry import HOST_OPERATORS, operators
from ptn_format.package import open_package
from ptn_runtime.conformance.programs import MethodBuilder, pack
from ptn_runtime.lowering.program import LoweredProgram
from ptn_runtime.shapes import OPERATORS

DATA_DEPENDENT = {
    "aten.nonzero.default",
    "aten.masked_select.default",
    "aten.repeat_interleave.Tensor",
    "aten._unique2.default",
    "aten.bincount.default",
    "aten.unique_consecutive.default",
    "aten.unique_dim.default",
}
"""The shape of the result depends on the data: the runtime calls them."""
RANDOM = tuple(
    f"aten.{name}"
    for name in (
        *("rand", "bernoulli.", "cauchy.", "exponential.", "geometric.", "log_normal.", "multinomial.", "normal."),
        *("normal_functional.", "uniform."),
    )
)
"""Random numbers."""
FACTORS = tuple(
    f"aten.{name}"
    for name in (
        *("_linalg_", "cholesky", "triangular_solve", "linalg_cholesky", "linalg_inv", "linalg_lu", "linalg_pinv"),
        *("linalg_qr", "linalg_solve"),
    )
)
"""Factors of matrices, which take a library of linear algebra."""
CHOICES = ("quantized_decomposed.choose_qparams", "quantized_decomposed._choose_qparams")
"""Parameters of quantisation chosen from data by PyTorch's own operators; TorchAO's run."""
RARE = {
    *("aten.embedding_renorm.default", "aten.empty_permuted.default", "aten.frexp.Tensor", "aten.i0.default"),
    *("aten.mode.default", "aten.nanmedian.default", "aten.nanmedian.dim", "aten.nonzero_static.default"),
}
"""Not seen in models so far: the reference engine runs them."""
FOURIER = ("aten._fft_",)
"""Fourier transforms."""


def _has_reason(op: str) -> bool:
    return (
        op in DATA_DEPENDENT | RARE
        or op.startswith((*RANDOM, *FOURIER, *FACTORS, *CHOICES))
        or op.partition(".default")[0].endswith("_backward")
    )


def test_what_is_missing_has_a_reason() -> None:
    missing = OPERATORS.keys() - operators().keys() - HOST_OPERATORS
    assert [op for op in sorted(missing) if not _has_reason(op)] == []


def test_two_thousand_nodes_are_built_for_a_new_shape_in_no_time() -> None:
    builder = MethodBuilder("forward")
    builder.constant("weight", np.ones(8, np.float32))
    builder.input("x", (1, 16), 8)
    meta = builder.metas["x"]
    last = "x"
    for i in range(1000):
        builder.call(f"product{i}", "aten.mul.Tensor", meta, self=last, other="weight")
        last = builder.call(f"silu{i}", "aten.silu.default", meta, self=f"product{i}")
    builder.result(last)
    package = open_package(pack([builder.build()], {"weight": np.ones(8, np.float32)}))
    program = LoweredProgram(package)
    engine = GgmlEngine()
    context = engine.create_host(engine.devices()[0], threads=1).create_context(program, package)
    best = float("inf")
    for rows in range(1, 8):
        graph = program.method("forward").specialize(((rows, 8),))
        start = time.process_time()
        context.build(graph)
        best = min(best, time.process_time() - start)
    assert best < 0.15, f"{best * 1000:.0f} ms"
