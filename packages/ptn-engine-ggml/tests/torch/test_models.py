"""Whole models, exported from PyTorch and compared with eager."""

from __future__ import annotations

import io

import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import to_native
from torch import nn


def package(methods: dict[str, torch.export.ExportedProgram]) -> bytes:
    target = io.BytesIO()
    to_native(methods).save(target)
    return target.getvalue()


def exported(module: nn.Module, args: tuple[torch.Tensor, ...], **kwargs: object) -> bytes:
    with torch.no_grad():
        return package({"forward": torch.export.export(module.eval(), args, **kwargs)})


def check(model: ptn_runtime.Model, module: nn.Module, *args: torch.Tensor, atol: float = 1e-4) -> None:
    with torch.no_grad():
        expected = module(*args)
    np.testing.assert_allclose(model(*(a.numpy() for a in args)), expected.numpy(), rtol=1e-4, atol=atol)


# --- a decoder with a static cache ---

HEADS, KV_HEADS, WIDTH, LENGTH, VOCABULARY = 8, 2, 64, 96, 128


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = WIDTH // HEADS
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, KV_HEADS * self.head, bias=False)
        self.v = nn.Linear(WIDTH, KV_HEADS * self.head, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("keys", torch.zeros(1, KV_HEADS, LENGTH, self.head))
        self.register_buffer("values", torch.zeros(1, KV_HEADS, LENGTH, self.head))
        frequencies = 1.0 / 10000 ** (torch.arange(0, self.head, 2).float() / self.head)
        self.register_buffer("frequencies", frequencies)

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        phases = positions[:, None].float() * self.frequencies
        cosine, sine = (torch.cat((f(phases), f(phases)), -1) for f in (torch.cos, torch.sin))
        a, b = x.chunk(2, -1)
        return x * cosine + torch.cat((-b, a), -1) * sine

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        t = x.shape[1]
        q = self.q(x).view(1, t, HEADS, self.head).transpose(1, 2)
        k = self.k(x).view(1, t, KV_HEADS, self.head).transpose(1, 2)
        v = self.v(x).view(1, t, KV_HEADS, self.head).transpose(1, 2)
        q, k = self.rotate(q, positions), self.rotate(k, positions)
        self.keys.index_copy_(2, positions, k)
        self.values.index_copy_(2, positions, v)
        mask = torch.arange(LENGTH)[None, :] <= positions[:, None]
        y = nn.functional.scaled_dot_product_attention(q, self.keys, self.values, mask, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(1, t, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(), RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 128, bias=False), nn.Linear(WIDTH, 128, bias=False)
        self.down = nn.Linear(128, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), positions)
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, positions)
        return self.head(self.norm(x)[:, -1])


@pytest.fixture(scope="module")
def decoder() -> tuple[Decoder, bytes]:
    torch.manual_seed(0)
    module = Decoder().eval()
    with torch.no_grad():
        length = torch.export.Dim("length", min=1, max=64)
        shapes = {"ids": {1: length}, "positions": {0: length}}
        prefill = torch.export.export(
            module, (torch.zeros(1, 5, dtype=torch.long), torch.arange(5)), dynamic_shapes=shapes
        )
        decode = torch.export.export(module, (torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)))
    return module, package({"prefill": prefill, "decode": decode})


def generate(step: object, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens; `step(method, ids, positions)` gives logits."""
    tokens: list[int] = []
    logits = step("prefill", prompt, list(range(len(prompt))))  # type: ignore[operator]
    for i in range(count):
        tokens.append(int(np.argmax(logits)))
        logits = step("decode", tokens[-1:], [len(prompt) + i])  # type: ignore[operator]
    return tokens


def test_decoder_generates_what_eager_generates(decoder: tuple[Decoder, bytes]) -> None:
    module, data = decoder

    def eager(_: str, ids: list[int], positions: list[int]) -> np.ndarray:
        with torch.no_grad():
            return module(torch.tensor([ids]), torch.tensor(positions)).numpy()

    def on(model: object) -> object:
        def step(method: str, ids: list[int], positions: list[int]) -> np.ndarray:
            return model.run(method, np.array([ids]), np.array(positions))  # type: ignore[attr-defined]

        return step

    prompt, other = [3, 14, 15, 92, 6], [27, 1, 82]
    expected = generate(eager, prompt, 64)
    with ptn_runtime.load(data, engine="ggml") as model:
        assert generate(on(model), prompt, 64) == expected
        session = model.session()
        first = generate(on(session), other, 16)
        model.state.reset()
        assert generate(on(model), prompt, 64) == expected
        session.state.reset()
        assert generate(on(session), other, 16) == first


def test_decoder_refuses_positions_beyond_the_cache_and_goes_on(decoder: tuple[Decoder, bytes]) -> None:
    _, data = decoder
    with ptn_runtime.load(data, engine="ggml") as model:
        before = model.run("decode", np.array([[1]]), np.array([0]))
        with pytest.raises(ptn_runtime.errors.IndexOutOfRangeError, match="96"):
            model.run("decode", np.array([[1]]), np.array([LENGTH]))
        with pytest.raises(ptn_runtime.errors.IndexOutOfRangeError, match="128"):
            model.run("decode", np.array([[VOCABULARY]]), np.array([1]))
        np.testing.assert_array_equal(model.run("decode", np.array([[1]]), np.array([0])), before)


# --- convolutional networks ---


class Residual(nn.Module):
    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, filters, 3, stride, 1, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
            nn.Conv2d(filters, filters, 3, 1, 1, bias=False),
            nn.BatchNorm2d(filters),
        )
        self.short = nn.Sequential(nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


class Inverted(nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        wide = channels * 4
        self.stride = stride
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.stride == 1 else self.body(x)


def mobilenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        Inverted(16, 1),
        Inverted(16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(16, 10),
    )


@pytest.mark.parametrize("make", [resnet, mobilenet])
def test_convolutional_network_with_dynamic_batch(make: object) -> None:
    torch.manual_seed(1)
    module = make()  # type: ignore[operator]
    module.train()
    with torch.no_grad():
        module(torch.randn(4, 3, 64, 64))  # statistics that are not those of a fresh module
    batch = torch.export.Dim("batch", min=1, max=8)
    data = exported(module, (torch.randn(2, 3, 64, 64),), dynamic_shapes=({0: batch},))
    with ptn_runtime.load(data, engine="ggml") as model:
        for n in (1, 2, 5):
            check(model, module, torch.randn(n, 3, 64, 64))


# --- an encoder ---


def test_encoder_with_dynamic_batch_and_length() -> None:
    torch.manual_seed(2)
    module = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    batch, length = torch.export.Dim("batch", min=1, max=4), torch.export.Dim("length", min=2, max=64)
    data = exported(module, (torch.randn(2, 7, 32),), dynamic_shapes={"src": {0: batch, 1: length}})
    with ptn_runtime.load(data, engine="ggml") as model:
        for n, t in ((1, 2), (2, 7), (4, 64)):
            check(model, module, torch.randn(n, t, 32))
