"""Models after TorchAO's `quantize_`: numbers, packed bytes, size of the file."""

from __future__ import annotations

import copy
import io
import math
import warnings
from typing import Any

import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import NativeProgram, to_native
from ptn_format.dtypes import ScalarType
from ptn_format.graph import AffineGroup
from ptn_format.package import Package, open_package
from ptn_format.quant import unpack_affine
from ptn_format.validate import validate_program
from torch import nn

with warnings.catch_warnings(action="ignore"):  # torchao's own, about its optional parts
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8DynamicActivationIntxWeightConfig,
        IntxWeightOnlyConfig,
        MappingType,
        quantize_,
    )
    from torchao.quantization.granularity import PerAxis, PerGroup

ENGINES = ("reference", "ggml")
INTEGERS = {bits: getattr(torch, f"int{bits}") for bits in range(2, 9)}


class Network(nn.Module):
    """Ids to logits: an embedding, two linear layers, and an output layer that may share the embedding's weight."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(50, 64)
        self.up = nn.Linear(64, 96)
        self.down = nn.Linear(96, 64, bias=False)
        self.head = nn.Linear(64, 50, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.down(torch.relu(self.up(self.embedding(ids)))))


def is_embedding(module: nn.Module, _: str = "") -> bool:
    return isinstance(module, nn.Embedding)


def is_weighted(module: nn.Module, _: str = "") -> bool:
    return isinstance(module, nn.Embedding | nn.Linear)


def quantized(config: Any, filter_fn: Any = None, model: nn.Module | None = None) -> nn.Module:
    model = Network().eval() if model is None else model
    quantize_(model, config, filter_fn)
    return model


def export(model: nn.Module, example: torch.Tensor | None = None) -> NativeProgram:
    example = torch.randint(0, 50, (3, 7)) if example is None else example
    batch = torch.export.Dim("batch", min=1, max=9)
    with warnings.catch_warnings(action="ignore"):  # PyTorch's own
        return to_native(torch.export.export(model, (example,), dynamic_shapes=({0: batch},)))


def saved(native: NativeProgram) -> bytes:
    file = io.BytesIO()
    native.save(file)
    return file.getvalue()


def opened(data: bytes) -> Package:
    package = open_package(data)
    infos = {key: package.constant_info(key) for key in package.constant_keys}
    assert validate_program(package.program, infos) == []
    return package


def assert_equal_to_eager(model: nn.Module, data: bytes, tolerance: float = 2e-6, **inputs: Any) -> None:
    """Compares both engines with eager PyTorch, at two batch sizes."""
    torch.manual_seed(5)
    for engine in ENGINES:
        with ptn_runtime.load(data, engine=engine) as loaded:
            for batch in (1, 4):
                ids = torch.randint(0, 50, (batch, 7))
                with torch.no_grad():
                    expected = model(ids).float().numpy()
                actual = np.asarray(loaded(ids.numpy()), np.float32)
                assert np.abs(actual - expected).max() <= tolerance * max(1.0, np.abs(expected).max()), engine


def schemes(native: NativeProgram) -> dict[str, AffineGroup]:
    quants = {ref.data_key: ref.meta.quant for ref in native.program.methods[0].constants}
    return {key: quant for key, quant in quants.items() if isinstance(quant, AffineGroup)}


@pytest.mark.parametrize(
    ("bits", "granularity", "mapping"),
    [
        (2, PerGroup(32), MappingType.ASYMMETRIC),
        (3, PerAxis(0), MappingType.SYMMETRIC),
        (4, PerGroup(32), MappingType.SYMMETRIC),
        (4, PerGroup(8), MappingType.ASYMMETRIC),
        (4, PerAxis(0), MappingType.ASYMMETRIC),
        (5, PerGroup(32), MappingType.SYMMETRIC_NO_CLIPPING_ERR),
        (6, PerGroup(8), MappingType.SYMMETRIC),
        (7, PerAxis(0), MappingType.ASYMMETRIC),
        (8, PerGroup(16), MappingType.ASYMMETRIC),
        (8, PerAxis(0), MappingType.SYMMETRIC),
    ],
)
def test_weights_of_every_width_are_packed(bits: int, granularity: Any, mapping: Any) -> None:
    model = quantized(IntxWeightOnlyConfig(INTEGERS[bits], granularity, mapping), is_weighted)
    native = export(model)
    data = saved(native)
    package = opened(data)
    found = schemes(native)
    assert sorted(key.split(".")[0] for key in found) == ["down", "embedding", "head", "up"]
    for name in ("embedding", "up", "down", "head"):
        weight = getattr(model, name).weight
        key = f"{name}.parametrizations.weight.original0"
        scheme = found[key]
        assert (scheme.quant_min, scheme.quant_max) == (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        assert scheme.group_size == weight.block_size[-1]
        assert scheme.scale_data_key == f"{name}.parametrizations.weight.original1"
        assert scheme.zero_point_data_key == f"{name}.parametrizations.weight.original2"
        packed = package.constant(key)
        assert packed.nbytes == math.ceil(weight.numel() * bits / 8)
        assert np.array_equal(unpack_affine(packed, scheme, weight.shape), weight.qdata.numpy())
        assert np.array_equal(package.constant(scheme.scale_data_key), weight.scale.numpy())
        assert np.array_equal(package.constant(scheme.zero_point_data_key), weight.zero_point.numpy())
    assert_equal_to_eager(model, data)


def test_int4_bytes_are_those_of_upstream() -> None:
    """The even element is in the low half of its byte; stored is `q + 8`. The node stays and reads the packed bytes."""
    model = nn.Sequential(nn.Linear(8, 2, bias=False)).eval()
    quantized(IntxWeightOnlyConfig(torch.int4, PerGroup(4)), model=model)
    model[0].weight.qdata.copy_(torch.tensor([[-8, -7, 6, 7, 0, 1, 2, 3], [-1, -2, -3, -4, -5, -6, -7, -8]]))
    with warnings.catch_warnings(action="ignore"):
        native = to_native(torch.export.export(model, (torch.randn(1, 8),)))
    key = "0.parametrizations.weight.original0"
    package = opened(saved(native))
    assert package.constant(key).tolist() == [[0x10, 0xFE, 0x98, 0xBA], [0x67, 0x45, 0x23, 0x01]]
    method = package.method("forward")
    ref = next(ref for ref in method.constants if ref.data_key == key)
    assert ref.meta.dtype is ScalarType.BYTE
    assert [dim.min for dim in ref.meta.sizes] == [2, 8]
    node = next(node for node in method.graph.nodes if node.target == "torch.ops.torchao.dequantize_affine.default")
    assert node.inputs[0].arg.name == ref.name  # type: ignore[union-attr]
    bound = {ref.data_key for ref in method.constants}
    assert {f"0.parametrizations.weight.original{i}" for i in range(3)} <= bound


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scales_keep_their_type(dtype: torch.dtype) -> None:
    model = quantized(IntxWeightOnlyConfig(torch.int4, PerGroup(32)), is_weighted, Network().eval().to(dtype))
    native = export(model)
    assert {scheme.scale_dtype.torch_name for scheme in schemes(native).values()} == {str(dtype).removeprefix("torch.")}
    assert_equal_to_eager(model, saved(native), tolerance=2e-2)


def test_tied_weight_is_stored_once() -> None:
    model = Network(tied=True).eval()
    quantized(IntxWeightOnlyConfig(torch.int4, PerGroup(32)), is_embedding, model)
    model.head.weight = model.embedding.weight
    native = export(model)
    data = saved(native)
    assert len(schemes(native)) == 1
    assert_equal_to_eager(model, data)
    assert len(data) < 50 * 32 + 2 * 64 * 96 * 4 + 9000


def test_8da4w_keeps_quantisation_of_activations() -> None:
    model = quantized(Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32)))
    native = export(model)
    operators = native.report.methods[0].operators
    assert operators["torchao.choose_qparams_affine.default"] == 3
    assert operators["torchao.quantize_affine.default"] == 3
    assert operators["torchao.dequantize_affine.default"] == 6
    assert len(schemes(native)) == 3
    assert_equal_to_eager(model, saved(native))


def test_int8_weights_with_quantised_activations_stay_bytes() -> None:
    model = quantized(Int8DynamicActivationInt8WeightConfig())
    data = saved(export(model))
    package = opened(data)
    for name in ("up", "down", "head"):
        stored = package.constant(f"{name}.parametrizations.weight.original0")
        assert stored.dtype == np.int8
        assert np.array_equal(stored, getattr(model, name).weight.qdata.numpy())
    assert_equal_to_eager(model, data)


def test_methods_share_packed_weights() -> None:
    model = quantized(IntxWeightOnlyConfig(torch.int4, PerGroup(32)), is_weighted)
    with warnings.catch_warnings(action="ignore"):
        one = torch.export.export(model, (torch.zeros(1, 1, dtype=torch.int64),))
        many = torch.export.export(model, (torch.zeros(1, 9, dtype=torch.int64),))
    native = to_native({"decode": one, "prefill": many})
    data = saved(native)
    opened(data)
    assert len(native.constants) == 4 * 3 + 1
    ids = torch.arange(9)[None]
    for engine in ENGINES:
        with ptn_runtime.load(data, engine=engine) as loaded, torch.no_grad():
            together = loaded.run("prefill", ids.numpy())
            np.testing.assert_allclose(together, model(ids), atol=2e-6)
            np.testing.assert_allclose(loaded.run("decode", ids[:, :1].numpy()), model(ids[:, :1]), atol=2e-6)


class ReadsIntegers(nn.Module):
    """Uses the integers of a quantised weight in two ways."""

    def __init__(self, other_range: bool) -> None:
        super().__init__()
        self.other_range = other_range
        self.register_buffer("weight", torch.randint(-8, 8, (6, 8), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(6, 2) + 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dequantize = torch.ops.torchao.dequantize_affine.default
        values = dequantize(self.weight, [1, 4], self.scale, None, torch.int8, -8, 7)
        if self.other_range:
            return x @ (values + dequantize(self.weight, [1, 4], self.scale, None, torch.int8, -128, 127)).t()
        return x @ (values + self.weight.to(x.dtype)).t()


@pytest.mark.parametrize("other_range", [False, True])
def test_integers_with_two_readings_stay_plain(other_range: bool) -> None:
    model = ReadsIntegers(other_range)
    native = to_native(torch.export.export(model, (torch.randn(3, 8),)))
    assert schemes(native) == {}
    x = torch.randn(3, 8)
    with ptn_runtime.load(saved(native), engine="reference") as loaded:
        np.testing.assert_allclose(loaded(x.numpy()), model(x), rtol=1e-5, atol=1e-5)


class Symmetric(ReadsIntegers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dequantize = torch.ops.torchao.dequantize_affine.default
        return x @ dequantize(self.weight, [1, 4], self.scale, None, torch.int8, -8, 7).t()


def test_integers_that_another_method_reads_otherwise_stay_plain() -> None:
    one, other = Symmetric(False), ReadsIntegers(False)
    other.load_state_dict(one.state_dict())
    x = torch.randn(3, 8)
    native = to_native({"one": torch.export.export(one, (x,)), "other": torch.export.export(other, (x,))})
    assert schemes(native) == {}
    data = saved(native)
    opened(data)
    with ptn_runtime.load(data, engine="reference") as loaded:
        np.testing.assert_allclose(loaded.run("one", x.numpy()), one(x), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(loaded.run("other", x.numpy()), other(x), rtol=1e-5, atol=1e-5)


def test_without_zero_points_there_is_no_key() -> None:
    model = Symmetric(False)
    native = to_native(torch.export.export(model, (torch.randn(3, 8),)))
    assert [scheme.zero_point_data_key for scheme in schemes(native).values()] == [None]
    x = torch.randn(3, 8)
    for engine in ENGINES:
        with ptn_runtime.load(saved(native), engine=engine) as loaded:
            np.testing.assert_allclose(loaded(x.numpy()), model(x), rtol=1e-5, atol=1e-5)


def test_values_out_of_the_declared_range_stay_plain() -> None:
    model = nn.Sequential(nn.Linear(8, 2, bias=False)).eval()
    quantized(IntxWeightOnlyConfig(torch.int4, PerGroup(4)), model=model)
    model[0].weight.qdata[0, 0] = 9
    with warnings.catch_warnings(action="ignore"):
        native = to_native(torch.export.export(model, (torch.randn(1, 8),)))
    assert schemes(native) == {}


def test_export_leaves_the_model_alone() -> None:
    model = quantized(IntxWeightOnlyConfig(torch.int4, PerGroup(32)), is_weighted)
    before = copy.deepcopy(model)
    saved(export(model))
    for ours, theirs in zip(model.parameters(), before.parameters(), strict=True):
        assert type(ours) is type(theirs)
        assert torch.equal(
            ours.dequantize() if hasattr(ours, "qdata") else ours,
            theirs.dequantize() if hasattr(theirs, "qdata") else theirs,
        )
