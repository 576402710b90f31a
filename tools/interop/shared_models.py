"""Models that upstream's exporter takes, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from interop.case import Call, Case, Form, Function, case

__all__ = ["shared_cases"]


class Mlp(nn.Module):
    """Two linear layers and an activation."""

    def __init__(self, activation: Callable[[Tensor], Tensor], width: int = 16) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, width), nn.Linear(width, 8)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, [N, 8]."""
        result: Tensor = x + self.down(self.activation(self.up(x)))
        return result


class Cnn(nn.Module):
    """Convolutions with strides and groups, average pooling, a residual connection; no batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, image: Tensor) -> Tensor:
        """Scores of images [N, 3, H, W]."""
        x = functional.relu6(self.stem(image))
        x = functional.avg_pool2d(x + functional.hardswish(self.pointwise(self.depthwise(x))), 2)
        result: Tensor = self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return result


class UpAndDown(nn.Module):
    """A strided convolution over time and its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv1d(4, 6, 5, stride=2, padding=2), nn.ConvTranspose1d(6, 4, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 4, T]."""
        result: Tensor = self.up(functional.leaky_relu(self.down(x), 0.1))
        return result


class Attention(nn.Module):
    """Self-attention with an optional causal mask."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, 16]."""
        batch, length, width = x.shape
        query, key, value = (
            layer(x).view(batch, length, 4, 4).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        result: Tensor = self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return result


def rotate_half(x: Tensor) -> Tensor:
    """The other channel of each pair, first halves negated."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


class Decoder(nn.Module):
    """One layer of a llama: RMSNorm, rotary embedding, key-value cache, grouped heads, gated MLP, tied head."""

    LENGTH, HEADS, GROUPS, WIDTH = 16, 4, 2, 8

    def __init__(self) -> None:
        super().__init__()
        hidden = self.HEADS * self.WIDTH
        self.tokens = nn.Embedding(20, hidden)
        self.norm, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key, self.value = (nn.Linear(hidden, self.GROUPS * self.WIDTH, bias=False) for _ in range(2))
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = (nn.Linear(hidden, 48, bias=False) for _ in range(2))
        self.down = nn.Linear(48, hidden, bias=False)
        shape = (1, self.GROUPS, self.LENGTH, self.WIDTH)
        self.keys = nn.Buffer(torch.zeros(shape))
        self.values = nn.Buffer(torch.zeros(shape))
        self.inv_freq = nn.Buffer(10000.0 ** (-torch.arange(0, self.WIDTH, 2) / self.WIDTH))

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Logits of tokens [1, T] at `positions` [T]."""
        x = self.tokens(ids)
        angles = positions[:, None].float() * self.inv_freq
        table = torch.cat((angles, angles), -1)
        x = x + self.attention(self.norm(x), positions, table.cos(), table.sin())
        h = self.norm2(x)
        x = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return functional.linear(x, self.tokens.weight)

    def attention(self, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Writes keys and values of the new tokens, and attends to all up to each."""
        length = positions.shape[0]
        query = self.query(x).view(1, length, self.HEADS, self.WIDTH).transpose(1, 2)
        key, value = (layer(x).view(1, length, self.GROUPS, self.WIDTH).transpose(1, 2)
                      for layer in (self.key, self.value))  # fmt: skip
        query, key = (t * cos + rotate_half(t) * sin for t in (query, key))
        self.keys.index_copy_(2, positions, key)
        self.values.index_copy_(2, positions, value)
        visible = torch.arange(self.LENGTH) <= positions[:, None]
        seen = functional.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=visible, enable_gqa=True
        )
        result: Tensor = self.out(seen.transpose(1, 2).reshape(1, length, -1))
        return result


class Counter(nn.Module):
    """Two buffers that change with each call, one of them with an initial value."""

    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Buffer(torch.tensor([3.0]))
        self.total = nn.Buffer(torch.zeros(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[4]."""
        self.count.add_(1)
        self.total.add_(x)
        return self.total * self.count


class Tied(nn.Module):
    """An embedding whose table is the output layer's weight, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Scores [N, T, 12]."""
        result: Tensor = self.head(functional.gelu(self.table(ids), approximate="tanh"))
        return result


class Constants(nn.Module):
    """A parameter in channels-last order, constants of other types, and one made in `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)
        self.conv.weight.data = self.conv.weight.data.contiguous(memory_format=torch.channels_last)
        self.offsets = nn.Buffer(torch.tensor([1, 2, 3, 4]))
        self.keep = nn.Buffer(torch.tensor([True, False, True, True]))

    def forward(self, x: Tensor) -> Tensor:
        """[N, 4, H, W]."""
        y = self.conv(x) * torch.tensor([0.5, 1.0, 2.0, 4.0])[:, None, None]
        return torch.where(self.keep[:, None, None], y, self.offsets[:, None, None].to(y.dtype))


def elementwise(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Unary and binary functions, numbers in the place of tensors, broadcasting."""
    total = torch.exp(-x) + torch.sqrt(y.abs() + 1) * torch.rsqrt(y * y + 2) - torch.log1p(x.abs())
    return (
        total.clamp(-3, 5) / (y + 10),
        torch.where(x > 0.25, x, y * 2),
        torch.maximum(x, y).pow(2) + torch.minimum(x, y).tanh().erf(),
        torch.floor(x * 7) % 3 + torch.atan2(y, x) + torch.fmod(x, 0.3) + x.reciprocal().sign(),
    )


def reductions(x: Tensor) -> tuple[Tensor, ...]:
    """Sums, means, extremes, positions."""
    return (x.sum(), x.mean((0, 2), keepdim=True), x.amax(1), x.prod(-1), x.argmax(1), x.var(1), (x > 0).any(-1))


def layout(x: Tensor) -> tuple[Tensor, ...]:
    """Views and what puts tensors together."""
    turned = x.permute(2, 0, 1).reshape(4, -1)
    parts = torch.cat((turned[:, 1:3], turned[:, -2:]), 1)
    return parts.unsqueeze(0).expand(3, 4, 4) + 1, torch.stack((x, x * 2), 1).flip(0), x.repeat(1, 2, 1).squeeze()


def indexing(x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    """Gathers and scatters."""
    filled = x.masked_fill(x > 0, 7.0)  # first, because upstream wants inputs to be read in their order
    wide = rows[:, None].expand(3, 4)
    return (
        filled,
        x[rows] * 1,
        x.index_select(0, rows) + 1,
        torch.gather(x, 0, wide),
        torch.zeros(5, 4).scatter_add(0, wide, x[:3]),
        x.index_put((rows,), torch.ones(3, 4)),
    )


def integers(n: Tensor, flags: Tensor) -> tuple[Tensor, ...]:
    """Integers and truth values."""
    return n // 3 + n % 4, (n & 6) | (n ^ 1), flags & ~(n > 2), n.to(torch.int32) * 2, torch.bitwise_not(n).abs()


def half(x: Tensor) -> Tensor:
    """A chain in bfloat16 with a part in float32."""
    return (functional.softmax(x.float(), -1).to(x.dtype) @ x.mT).relu()


def numbers_of_shape(x: Tensor) -> tuple[Tensor, ...]:
    """Axes that the results take from the input's dynamic ones."""
    return x.view(-1), x.transpose(0, 1) @ x


def padded(x: Tensor) -> tuple[Tensor, ...]:
    """Padding and resizing."""
    return (
        functional.pad(x, (1, 2, 0, 1), value=0.5),
        functional.interpolate(x, scale_factor=2.0, mode="nearest"),
        functional.interpolate(x, size=(7, 9), mode="bilinear", align_corners=False),
    )


def keyword(x: Tensor, *, scale: Tensor, shift: Tensor) -> dict[str, Any]:
    """Nested results."""
    return {"scaled": x * scale, "rest": [x + shift, (x - shift,)]}


def add_to_input(x: Tensor, y: Tensor) -> Tensor:
    """Changes its first argument."""
    x.add_(y)
    return y * 2


def products(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Matrix products of several ranks."""
    return torch.einsum("bij,bjk->bik", a, b), a @ b[0], torch.bmm(a, b) + 1, torch.addmm(b[0, 0], a[0], b[0])


def normalised(x: Tensor) -> Tensor:
    """A layer norm without parameters whose statistics nobody else reads."""
    return functional.layer_norm(x, (8,))


def ranked(x: Tensor) -> tuple[Tensor, ...]:
    """Operators of several results, which are results of the model."""
    return (*torch.topk(x, 3), *torch.sort(x, descending=True), x.cumsum(-1))


def masked(x: Tensor) -> Tensor:
    """A triangular mask."""
    return torch.tril(x) + torch.triu(torch.ones(5, 5), 1)


def int8_weights() -> nn.Module:
    """8-bit weights of torchao, a scale per row."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = Mlp(functional.relu, 32)
    quantize_(model, Int8WeightOnlyConfig())
    return model


def function(body: Callable[..., Any]) -> Callable[[], nn.Module]:
    """What makes a module of a function."""
    return lambda: Function(body)


def two_methods() -> Case:
    """`prefill` of many tokens and `decode` of one, over one cache."""
    many = Call("prefill", (torch.tensor([[3, 7, 1, 15]]), torch.arange(4)))
    ones = [Call("decode", (torch.tensor([[token]]), torch.tensor([4 + i]))) for i, token in enumerate((9, 2, 19))]
    forms = {"prefill": Form(many.args), "decode": Form(ones[0].args)}
    return Case("several methods over one cache", Decoder, forms, [many, *ones])


def shared_cases() -> list[Case]:
    """The models, with new inputs."""
    torch.manual_seed(1)
    x = torch.randn(3, 8)
    batch, time = Dim("batch", min=2, max=8), Dim("time", min=2, max=16)
    image = torch.randn(2, 3, 16, 16)
    tokens = [(torch.tensor([[token]]), torch.tensor([i])) for i, token in enumerate((4, 8, 0))]
    prompt, more = (torch.tensor([[3, 7, 1]]), torch.arange(3)), (torch.tensor([[5, 6]]), torch.tensor([3, 4]))
    return [
        case("linear", lambda: nn.Linear(8, 4), (x,)),
        case("MLP, relu", lambda: Mlp(functional.relu), (x,), (x * 2,)),
        case("MLP, gelu", lambda: Mlp(functional.gelu), (x,)),
        case("MLP, silu", lambda: Mlp(functional.silu), (x,)),
        case("MLP, softplus and mish", lambda: Mlp(lambda v: functional.mish(functional.softplus(v))), (x,)),
        case("MLP, dynamic batch", lambda: Mlp(functional.relu), (x,), (torch.randn(7, 8),), dynamic=({0: batch},)),
        case("CNN without batch norm", Cnn, (image,)),
        case("CNN, dynamic batch", Cnn, (image,), (torch.randn(5, 3, 16, 16),), dynamic=({0: batch},)),
        case("convolutions over time", UpAndDown, (torch.randn(2, 4, 12),)),
        case("max pooling", function(lambda v: functional.max_pool2d(v, 3, 2, 1)), (image,)),
        case("attention", lambda: Attention(causal=False), (torch.randn(2, 6, 16),)),
        case("attention, causal, dynamic length", lambda: Attention(causal=True), (torch.randn(2, 6, 16),),
             (torch.randn(2, 11, 16),), dynamic=({1: time},)),
        case("decoder with a cache", Decoder, *tokens),
        case("decoder with a cache, dynamic length", Decoder, prompt, more, dynamic=({1: time}, {0: time})),
        two_methods(),
        case("state", Counter, (torch.ones(4),), (torch.arange(4.0),)),
        case("tied weights", Tied, (torch.tensor([[1, 5, 11], [0, 2, 7]]),)),
        case("constants of many kinds", Constants, (torch.randn(2, 4, 5, 5),)),
        case("elementwise", function(elementwise), (x, torch.randn(8))),
        case("reductions", function(reductions), (torch.randn(3, 5, 4),)),
        case("layout", function(layout), (torch.randn(2, 3, 4),)),
        case("indices", function(indexing), (torch.randn(5, 4), torch.tensor([4, 0, 2]))),
        case("integers", function(integers), (torch.arange(6), torch.arange(6) % 2 == 0)),
        case("bfloat16", function(half), (torch.randn(4, 8, dtype=torch.bfloat16),), atol=4e-2),
        case("dynamic sizes", function(numbers_of_shape), (torch.randn(3, 5),), (torch.randn(8, 5),),
             dynamic=(({0: batch},),)),
        case("padding and resizing", function(padded), (image[:, :, :5, :6].contiguous(),)),
        case("keywords and nested results", function(keyword), (x,), kwargs={"scale": x + 1, "shift": x * 2}),
        case("matrix products", function(products), (torch.randn(2, 4, 3), torch.randn(2, 3, 4))),
        case("layer norm", function(normalised), (x,)),
        case("softmax and its logarithm", function(lambda v: (v.softmax(-1), functional.log_softmax(v, 0))), (x,)),
        case("top k, sort, running sums", function(ranked), (x,)),
        case("triangular masks", function(masked), (torch.randn(5, 5),)),
        case("int8 weights of torchao", int8_weights, (x,), atol=1e-4),
    ]  # fmt: skip
