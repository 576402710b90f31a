"""What a package stores: layouts, shared and listed weights, every element type, names of any kind, packed bits."""

import numpy as np
import ptn_runtime
import pytest
import torch
import torch.nn.functional as F
from torch import nn


def nbytes(native):
    return sum(np.asarray(constant).nbytes for constant in native.constants.values())


class Layouts(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4).to(memory_format=torch.channels_last)
        base = torch.arange(24.0).reshape(4, 6)
        self.register_buffer("transposed", base.t())
        self.register_buffer("expanded", torch.tensor([[1.0], [2.0]]).expand(2, 5))
        self.register_buffer("sliced", base[1::2, ::3])
        self.register_buffer("permuted", torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1))
        self.register_buffer("conjugated", base[None, :, None, :2])
        self.literal = base.t()[1:, ::2]

    def forward(self, x):
        y = self.depthwise(self.conv(x))
        return (
            (y, y.to(memory_format=torch.channels_last) + 1, x.to(memory_format=torch.channels_last).flatten(1)),
            (self.transposed @ torch.ones(4), self.expanded.sum(0), self.sliced + 1, self.permuted.flatten()),
            (self.literal * 2, self.conjugated, self.transposed),
        )


# https://github.com/pytorch/executorch/issues/16464, https://github.com/pytorch/executorch/pull/22533,
# https://github.com/pytorch/executorch/issues/16429
def test_values_not_strides_are_stored(everywhere):
    def expect(results):
        assert results[1][1].tolist() == [3] * 5
        assert results[1][2].tolist() == [[7, 10], [19, 22]]

    torch.manual_seed(20)
    x = torch.randn(1, 3, 8, 8)
    native = everywhere(Layouts().eval(), (x,), (x.to(memory_format=torch.channels_last),), expect=expect)
    assert {np.asarray(value).shape for key, value in native.constants.items() if key == "expanded"} <= {(2, 5)}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.out = nn.Linear(32, 64, bias=False)
        self.out.weight = self.embedding.weight
        self.register_buffer("same", self.embedding.weight.data)

    def forward(self, ids):
        logits = self.out(self.embedding(ids))
        return logits, F.linear(logits, self.embedding.weight.t()), logits @ self.same


# https://github.com/pytorch/pytorch/issues/127357, https://github.com/pytorch/pytorch/issues/108342,
# https://github.com/safetensors/safetensors/issues/98
def test_tied_weights_are_stored_once(everywhere, tmp_path):
    torch.manual_seed(24)
    native = everywhere(Tied().eval(), (torch.tensor([[1, 63, 0]]),), rtol=1e-4, atol=1e-4)
    native.save(tmp_path / "model.ptn")
    assert (tmp_path / "model.ptn").stat().st_size < 2 * 64 * 32 * 4


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4096.0).reshape(64, 64))
        self.group = [self.weight]
        self.table = {"w": self.weight}
        self.plain = torch.full((64,), 3.0)  # neither parameter nor buffer
        self.plain_list = [self.plain, self.plain[:1]]

    def forward(self, x):
        return x @ self.group[0] + self.table["w"].sum(0) + self.plain + self.plain_list[0] * self.plain_list[1]


# https://github.com/pytorch/pytorch/issues/163303
def test_parameters_reached_through_lists_and_dicts(everywhere):
    x = torch.ones(1, 64)
    first, second = everywhere(Listed().eval(), (x,)), everywhere(Listed().eval(), (x,))
    assert list(first.constants) == list(second.constants)
    assert "weight" in first.constants
    assert nbytes(first) < 1.5 * 64 * 64 * 4  # one copy, and small results that were folded


class EveryType(nn.Module):
    VALUES = {
        torch.int64: [2**40, -(2**40), 2**63 - 1],
        torch.int32: [2**31 - 1, -(2**31), 0],
        torch.int16: [2**15 - 1, -(2**15), 0],
        torch.int8: [-128, 127, 0],
        torch.uint8: [255, 128, 0],
        torch.bool: [True, False, True],
        torch.bfloat16: [1.0, -2.5, 3.140625],
        torch.float16: [1.0, 65504.0, 6e-8],
        torch.float32: [0.1, 1e-45, -0.0],
        torch.float64: [0.1, 1e300, -0.0],
    }

    def __init__(self):
        super().__init__()
        for dtype, values in self.VALUES.items():
            self.register_buffer(str(dtype).replace("torch.", "b_"), torch.tensor(values, dtype=dtype))

    def forward(self, x):
        stored = {name: (buffer, buffer[:2].clone()) for name, buffer in self.named_buffers()}
        literals = (
            torch.tensor([2**40]),
            torch.tensor([1.5], dtype=torch.bfloat16),
            torch.tensor([200], dtype=torch.uint8),
        )
        computed = (
            (
                self.b_int64 + 1,
                self.b_int8.long() * 2,
                self.b_uint8 + 1,
                x.masked_fill(self.b_bool, 9.0),
                self.b_bfloat16 * 2,
            ),
            (
                self.b_float16.float(),
                self.b_float64 * 2,
                self.b_int32.long() - 1,
                self.b_int16 // 2,
                ~self.b_bool,
                self.b_float32 * 2,
            ),
            (
                self.b_bfloat16 + x,
                self.b_float16 + self.b_bfloat16,
                self.b_bfloat16.double(),
                self.b_bfloat16.to(torch.float16),
            ),
            (
                self.b_bfloat16.sum(),
                self.b_bfloat16 @ self.b_bfloat16,
                x.to(torch.bfloat16),
                self.b_bfloat16.to(torch.int32),
            ),
        )
        return stored, literals, computed


# https://github.com/Tencent/ncnn/issues/5015, https://github.com/safetensors/safetensors/issues/598,
# https://github.com/safetensors/safetensors/issues/448
def test_constants_of_every_type_survive_bit_for_bit(everywhere):
    def expect(results):
        first, second = results[2][:2]
        assert first[0].tolist() == [2**40 + 1, -(2**40) + 1, -(2**63)]
        assert first[2].tolist() == [0, 129, 1]
        assert first[4].tolist() == [2.0, -5.0, 6.28125]
        assert second[1].dtype == torch.float64
        for dtype, values in EveryType.VALUES.items():
            found = results[0][str(dtype).replace("torch.", "b_")][0]
            as_bytes = lambda t: t.contiguous().view(torch.uint8).tolist()  # noqa: E731
            assert as_bytes(found) == as_bytes(torch.tensor(values, dtype=dtype))

    everywhere(EveryType().eval(), (torch.zeros(3),), expect=expect)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.gewicht_ü = nn.Parameter(torch.tensor([1.0]))
        self.a_b = nn.Parameter(torch.tensor([2.0]))
        self.a = nn.Module()
        self.a.b = nn.Parameter(torch.tensor([3.0]))
        self.register_parameter("class_", nn.Parameter(torch.tensor([4.0])))
        self.register_buffer("权重", torch.tensor([5.0]))
        self.register_parameter("lambda", nn.Parameter(torch.tensor([6.0])))
        self.register_buffer("lambda_", torch.tensor([7.0]))
        self.layers = nn.ModuleDict({"if": nn.Linear(1, 1), "p-1 x/y": nn.Linear(1, 1)})
        for i, layer in enumerate(self.layers.values(), 8):
            nn.init.constant_(layer.weight, i)
            nn.init.zeros_(layer.bias)

    def forward(self, 输入, x=None):
        places = zip((self.gewicht_ü, self.a_b, self.a.b, self.class_, self.权重), range(5), strict=True)
        y = sum(输入 * 10.0**place * weight for weight, place in places)
        z = 输入 * getattr(self, "lambda") + 输入 * 10 * self.lambda_
        return {"größe": y, "z": (z, [layer(输入) for layer in self.layers.values()], x)}


# https://github.com/pytorch/executorch/issues/8540, https://github.com/ggml-org/llama.cpp/pull/24263
def test_names_of_any_kind(everywhere, tmp_path):
    def expect(results):
        assert results["größe"].item() == 54321
        assert results["z"][0].item() == 76
        assert [r.item() for r in results["z"][1]] == [8, 9]

    module = Named().eval()
    native = everywhere(module, (torch.tensor([1.0]),), expect=expect)
    assert set(native.constants) == {*dict(module.named_parameters()), *dict(module.named_buffers())}
    native.save(tmp_path / "größe 模型.ptn")
    with ptn_runtime.load(tmp_path / "größe 模型.ptn", engine="reference") as model:
        assert model(输入=np.ones(1, np.float32))["größe"] == 54321


class FourBits(nn.Module):
    """Two values per byte, the low half first; the last group of a row is short."""

    def __init__(self, rows=5, columns=40, group=16):
        super().__init__()
        generator = torch.Generator().manual_seed(33)
        values = torch.randint(0, 16, (rows, columns), generator=generator, dtype=torch.uint8)
        groups = -(-columns // group)
        self.register_buffer("packed", values[:, 0::2] | (values[:, 1::2] << 4))
        self.register_buffer("scale", torch.rand(rows, groups, generator=generator) + 0.05)
        self.register_buffer("zero", torch.randint(0, 16, (rows, groups), generator=generator).float())
        self.columns, self.group = columns, group

    def forward(self, x):
        low, high = self.packed & 15, self.packed >> 4
        values = torch.stack([low, high], -1).flatten(1).float()
        scale = self.scale.repeat_interleave(self.group, 1)[:, : self.columns]
        zero = self.zero.repeat_interleave(self.group, 1)[:, : self.columns]
        signed = ((self.packed << 4).view(torch.int8) >> 4, self.packed.view(torch.int8) >> 4)  # keeps the sign
        return F.linear(x, (values - zero) * scale), signed


# https://github.com/pytorch/executorch/pull/7274, https://github.com/NVIDIA/Model-Optimizer/pull/2320,
# https://github.com/pytorch/executorch/pull/20610
@pytest.mark.parametrize("group", [16, 40, 8])
def test_packed_bits_taken_apart_by_hand(everywhere, group):
    torch.manual_seed(33)
    batch = torch.export.Dim("batch", min=1, max=32)
    calls = [(torch.randn(n, 40),) for n in (3, 1, 8)]
    everywhere(FourBits(group=group).eval(), *calls, dynamic_shapes=({0: batch},), rtol=1e-4, atol=1e-4)
