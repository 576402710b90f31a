"""What TorchAO's configurations become: each configuration, module and element type once, one program a type."""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import ExportError, NativeProgram, to_native
from ptn_export.quantize import quantize_module
from ptn_format.graph import AffineGroup
from ptn_format.package import Package, open_package
from ptn_format.quant import unpack_affine
from ptn_format.validate import validate_program
from torch import nn
from torch.nn import functional as F

with warnings.catch_warnings(action="ignore"):  # torchao's own, about its optional parts
    from torchao.prototype.quantization.int4.inference_workflow import PrototypeInt4WeightOnlyConfig
    from torchao.quantization import (
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        MappingType,
        quantize_,
    )
    from torchao.quantization.granularity import PerAxis, PerGroup, PerRow, PerTensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ASYMMETRIC = MappingType.ASYMMETRIC


def int8(granularity: Any) -> Any:
    return Int8WeightOnlyConfig(granularity=granularity, set_inductor_config=False)


@dataclass
class Form:
    """A module, how it is quantised, and what its weight becomes: bits, elements of a group, axes as stored."""

    module: nn.Module
    config: Any
    bits: int
    group: int
    order: tuple[int, ...] = (0, 1)


def forms() -> dict[str, Form]:
    torch.manual_seed(0)
    opaque = PrototypeInt4WeightOnlyConfig(group_size=32, set_inductor_config=False)
    last = (0, 2, 3, 1)  # channels behind
    return {
        "int8_linear_row": Form(nn.Linear(64, 24), int8(PerRow()), 8, 64),
        "int8_linear_tensor": Form(nn.Linear(64, 24, bias=False), int8(PerTensor()), 8, 64),
        "int8_linear_group": Form(nn.Linear(64, 24), int8(PerGroup(16)), 8, 16),
        "int8_embedding": Form(nn.Embedding(20, 64), int8(PerRow()), 8, 64),
        "opaque_linear": Form(nn.Linear(64, 32), opaque, 4, 32),
        "int4_odd_rows": Form(nn.Linear(45, 3), IntxWeightOnlyConfig(torch.int4, PerGroup(9), ASYMMETRIC), 4, 9),
        "int3_odd_rows": Form(nn.Embedding(7, 15), IntxWeightOnlyConfig(torch.int3, PerAxis(0)), 3, 15),
        "int4_conv": Form(nn.Conv2d(16, 6, 3), IntxWeightOnlyConfig(torch.int4, PerGroup(8)), 4, 8, last),
        "int4_conv_1x1": Form(nn.Conv2d(16, 6, 1), IntxWeightOnlyConfig(torch.int4, PerGroup(16)), 4, 16, last),
        "int5_conv_groups": Form(
            nn.Conv2d(16, 6, (3, 1), groups=2, stride=2),
            IntxWeightOnlyConfig(torch.int5, PerAxis(0), ASYMMETRIC),
            5,
            8,
            last,
        ),
        "int8_conv": Form(nn.Conv2d(4, 6, 2, padding=1), IntxWeightOnlyConfig(torch.int8, PerAxis(0)), 8, 4, last),
    }


class All(nn.Module):
    """Every form on its own input."""

    def __init__(self, parts: dict[str, Form], dtype: torch.dtype) -> None:
        super().__init__()
        for name, form in parts.items():
            self.add_module(name, form.module.to(dtype))

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: getattr(self, name)(x) for name, x in inputs.items()}


def example(module: nn.Module, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(module, nn.Embedding):
        return torch.randint(0, module.num_embeddings, (2, 3))
    shape = (2, 3, module.in_features) if isinstance(module, nn.Linear) else (2, module.in_channels, 7, 6)
    return torch.randn(shape).to(dtype)  # type: ignore[arg-type]


def as_numpy(x: torch.Tensor) -> np.ndarray[Any, Any]:
    import ml_dtypes

    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype is torch.bfloat16 else x.numpy()


@dataclass
class Exported:
    dtype: torch.dtype
    forms: dict[str, Form]
    model: nn.Module
    inputs: dict[str, torch.Tensor]
    native: NativeProgram
    data: bytes

    def package(self) -> Package:
        package = open_package(self.data)
        infos = {key: package.constant_info(key) for key in package.constant_keys}
        assert validate_program(package.program, infos) == []
        return package


@pytest.fixture(scope="module", params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def exported(request: pytest.FixtureRequest) -> Exported:
    parts = forms()
    model = All(parts, request.param).eval()
    for form in parts.values():
        quantize_(form.module, form.config, lambda *_: True)
    inputs = {name: example(form.module, request.param) for name, form in parts.items()}
    with warnings.catch_warnings(action="ignore"):  # PyTorch's own
        native = to_native(torch.export.export(model, (inputs,)))
    file = io.BytesIO()
    native.save(file)
    return Exported(request.param, parts, model, inputs, native, file.getvalue())


def integers(weight: Any) -> torch.Tensor:
    """What a quantised weight holds."""
    if type(weight).__name__ != "Int4OpaqueTensor":
        return weight.qdata  # type: ignore[no-any-return]
    unit = torch.zeros(2, weight.shape[0], 2)
    unit[..., 0] = 1
    product = torch.ops.aten._weight_int4pack_mm_for_cpu(torch.eye(64), weight.qdata, 32, unit)
    return product.t().to(torch.int8)


def test_bytes_in_the_file(exported: Exported) -> None:
    package = exported.package()
    refs = {ref.data_key: ref for ref in package.method("forward").constants}
    for name, form in exported.forms.items():
        weight = form.module.weight
        key = next(key for key in refs if key.startswith(f"{name}.parametrizations.weight.original0"))
        scheme = refs[key].meta.quant
        assert isinstance(scheme, AffineGroup), name
        assert scheme.quant_max - scheme.quant_min + 1 == 2**form.bits
        assert scheme.group_size == form.group
        order = form.order
        expected = integers(weight).permute(order)
        assert tuple(dim.min for dim in refs[key].meta.sizes) == tuple(expected.shape)
        packed = package.constant(key)
        assert packed.nbytes == math.ceil(weight.numel() * form.bits / 8)
        assert np.array_equal(unpack_affine(packed, scheme, tuple(expected.shape)), expected.numpy()), name
        if hasattr(weight, "scale") and weight.scale.numel() > 1:
            scale = package.constant(scheme.scale_data_key)
            assert np.array_equal(scale, as_numpy(weight.scale.permute(order).contiguous())), name


def test_numbers_are_those_of_eager_pytorch(exported: Exported) -> None:
    tolerance = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 2e-2}[exported.dtype]
    inputs = {name: as_numpy(x) for name, x in exported.inputs.items()}
    with torch.no_grad():
        expected = exported.model(exported.inputs)
    for engine in ("reference", "ggml"):
        with ptn_runtime.load(exported.data, engine=engine) as loaded:
            found = loaded(inputs)
        for name, values in expected.items():
            wanted = values.float().numpy()
            difference = np.abs(np.asarray(found[name], np.float32) - wanted).max()
            assert difference <= tolerance * np.abs(wanted).max(), (engine, name)


# Whole files


class Language(nn.Module):
    """Sizes as in a small language model, where constants outweigh the graph."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4000, 256)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((256, 1024), (1024, 256)))
        self.norm = nn.LayerNorm(256)
        self.head = nn.Linear(256, 4000, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        x = x + self.layers[1](F.silu(self.layers[0](x)))
        return self.head(self.norm(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("tied", [False, True])
def test_a_4_bit_file_is_as_small_as_its_parts(tied: bool) -> None:
    model = quantize_module(Language(tied=tied).eval(), "int4")
    with warnings.catch_warnings(action="ignore"):  # PyTorch's own
        native = to_native(torch.export.export(model, (torch.zeros(1, 8, dtype=torch.int64),)))
    file = io.BytesIO()
    native.save(file)
    size = len(file.getvalue())
    matrices = (4000 * 256) * (1 if tied else 2) + 2 * 256 * 1024
    packed, scales, zero_points = matrices // 2, matrices // 32 * 4, matrices // 32
    parts = packed + scales + zero_points + 4 * (1024 + 256 + 2 * 256)
    assert packed + scales <= size <= 1.03 * parts  # zero points that are all 0 are stored once


# Refusals


@pytest.mark.parametrize(
    ("library", "operator", "kind"),
    [
        ("mslk", "bf16i4bf16_rowwise", r"Int4Tensor or Int4PreshuffledTensor \(kernels of the mslk package\)"),
        ("torchao", "_linear_8bit_act_4bit_weight", "IntxOpaqueTensor"),
    ],
)
def test_layouts_that_only_a_kernel_knows_are_refused(library: str, operator: str, kind: str) -> None:
    """TorchAO's operators of these names exist on other machines only; these stand in for them."""
    if not hasattr(getattr(torch.ops, library), operator):

        @torch.library.custom_op(f"{library}::{operator}", mutates_args=())
        def multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return x @ weight.float().t()

        @multiply.register_fake
        def _(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return x.new_empty(x.shape[0], weight.shape[0])

    class Opaque(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.zeros(4, 8, dtype=torch.int8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return getattr(getattr(torch.ops, library), operator)(x, self.weight)

    program = torch.export.export(Opaque(), (torch.zeros(2, 8),))
    with pytest.raises(
        ExportError, match=rf"TorchAO's {kind}[\s\S]*IntxWeightOnlyConfig\(torch.int4, PerGroup\(32\)\)"
    ):
        to_native(program)
