"""Write the small models of the conformance suite: packages, and what eager PyTorch makes of their inputs.

```
python tools/write_conformance_models.py
```

Needs ptn-export. Each model becomes `model.ptn` and `calls.npz`, whose entries are called `<step>.<method>.in<i>` and
`<step>.<method>.out<i>`: the calls are made in order, on one state.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _repository import PACKAGES
from ptn_export import to_native
from torch import nn
from torch.nn import functional

TARGET = PACKAGES / "ptn-runtime" / "src" / "ptn_runtime" / "conformance" / "data" / "models"
Call = tuple[str, tuple[torch.Tensor, ...]]


class Cnn(nn.Module):
    """Convolutions with strides, groups and batch norm, two kinds of pooling, a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.norm.running_mean = torch.linspace(-0.5, 0.5, 8)
        self.norm.running_var = torch.linspace(0.5, 1.5, 8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Class probabilities of images [N, 3, H, W]."""
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(image))), 3, stride=2, padding=1)
        x = x + functional.silu(self.pointwise(self.depthwise(x)))
        return functional.softmax(self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1)), -1)


class Encoder(nn.Module):
    """An embedding with positions, one transformer layer with a padding mask, mean pooling over what is not padding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 16)
        self.positions = nn.Embedding(32, 16)
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One vector per row of `ids` [N, T]; `mask` is 1 where there is a token."""
        batch, length = ids.shape
        x = self.tokens(ids) + self.positions(torch.arange(length))
        q, k, v = (layer(x).view(batch, length, 4, 4).transpose(1, 2) for layer in (self.query, self.key, self.value))
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :] > 0)
        x = self.first(x + self.out(seen.transpose(1, 2).reshape(batch, length, 16)))
        x = self.second(x + self.down(functional.gelu(self.up(x))))
        weights = mask[..., None].to(x.dtype)
        pooled: torch.Tensor = (x * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return pooled


class Decoder(nn.Module):
    """One attention layer over a cache that two methods share: `prefill` takes many tokens, `decode` one."""

    LENGTH = 12

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.RMSNorm(8)
        self.keys = nn.Buffer(torch.zeros(1, self.LENGTH, 8))
        self.values = nn.Buffer(torch.zeros(1, self.LENGTH, 8))

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits of tokens [1, T] at `positions` [T]."""
        x = self.tokens(ids)
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        self.keys[:, positions] = key
        self.values[:, positions] = value
        visible = torch.arange(self.LENGTH) <= positions[:, None]
        seen = functional.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=visible)
        return functional.linear(x + seen, self.tokens.weight)


class Lstm(nn.Module):
    """Two layers in both directions, and the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of a sequence [N, T, 6], and the last hidden states."""
        y, (hidden, _) = self.lstm(x)
        return self.head(y), hidden


class Mlp(nn.Module):
    """Two linear layers, for quantisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 32), nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape, [N, 64]."""
        result: torch.Tensor = x + self.second(functional.silu(self.first(x)))
        return result


def quantized(config: Any) -> nn.Module:
    """An `Mlp` with weights quantised by torchao."""
    from torchao.quantization import quantize_

    model = Mlp().eval()
    quantize_(model, config)
    return model


def int8_weights() -> nn.Module:
    """8-bit weights, a scale per row."""
    from torchao.quantization import Int8WeightOnlyConfig

    return quantized(Int8WeightOnlyConfig())


def int4_weights() -> nn.Module:
    """4-bit weights in groups of 32, stored packed."""
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup

    return quantized(IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))  # type: ignore[attr-defined]


def plain(build: Callable[[], nn.Module], *inputs: tuple[torch.Tensor, ...], dynamic: Any = None) -> Any:
    """One method; exported with the first inputs, recorded with all of them."""

    def make() -> tuple[Any, nn.Module, list[Call]]:
        model = build().eval()
        exported = torch.export.export(model, inputs[0], dynamic_shapes=dynamic)
        return exported, model, [("forward", args) for args in inputs]

    return make


def decoder() -> tuple[Any, nn.Module, list[Call]]:
    """`prefill` of up to 8 tokens and `decode` of one, over one cache."""
    model = Decoder().eval()
    ids, positions = torch.tensor([[3, 7, 1, 15]]), torch.arange(4)
    length = torch.export.Dim("length", min=2, max=8)
    prefill = torch.export.export(model, (ids, positions), dynamic_shapes=({1: length}, {0: length}))
    one = (torch.tensor([[9]]), torch.tensor([4]))
    decode = torch.export.export(model, one)
    calls: list[Call] = [("prefill", (ids, positions)), ("decode", one)]
    calls += [("decode", (torch.tensor([[token]]), torch.tensor([5 + i]))) for i, token in enumerate((2, 19))]
    return {"prefill": prefill, "decode": decode}, model, calls


BATCH = torch.export.Dim("batch", min=1, max=8)
TIME = torch.export.Dim("time", min=2, max=16)


def models() -> dict[str, Callable[[], tuple[Any, nn.Module, list[Call]]]]:
    """How to make each model, by name."""
    ids = torch.tensor([[4, 8, 15, 16, 23], [42, 7, 1, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    long = torch.arange(9)[None].repeat(3, 1)
    x = torch.randn(4, 64)
    return {
        "cnn": plain(Cnn, (torch.randn(2, 3, 33, 31),), (torch.randn(5, 3, 33, 31),), dynamic=({0: BATCH},)),
        "encoder": plain(Encoder, (ids, mask), (long, torch.ones_like(long)),
                         dynamic=({0: BATCH, 1: TIME}, {0: BATCH, 1: TIME})),
        "decoder": decoder,
        "lstm": plain(Lstm, (torch.randn(2, 7, 6),)),
        "int8_weights": plain(int8_weights, (x,), (torch.randn(1, 64),), dynamic=({0: BATCH},)),
        "int4_weights": plain(int4_weights, (x,), (torch.randn(1, 64),), dynamic=({0: BATCH},)),
    }  # fmt: skip


def main() -> int:
    """Writes all models anew."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    shutil.rmtree(TARGET, ignore_errors=True)
    for name, make in models().items():
        torch.manual_seed(1)
        exported, model, calls = make()
        folder = TARGET / name
        folder.mkdir(parents=True)
        to_native(exported).save(folder / "model.ptn")
        record: dict[str, np.ndarray[Any, Any]] = {}
        for step, (method, args) in enumerate(calls):
            with torch.no_grad():
                results = model(*args)
            results = (results,) if isinstance(results, torch.Tensor) else results
            for kind, tensors in (("in", args), ("out", results)):
                record.update({f"{step:02}.{method}.{kind}{i}": t.numpy() for i, t in enumerate(tensors)})
        np.savez(folder / "calls.npz", allow_pickle=False, **record)
        print(f"{name}: {(folder / 'model.ptn').stat().st_size} bytes, {len(calls)} calls")
    return 0


if __name__ == "__main__":
    sys.exit(main())
