"""Models that upstream's exporter refuses, or exports as something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ptn_format import GGUF_TYPES
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from interop.case import Case, case
from interop.shared_models import add_to_input, function

__all__ = ["Beyond", "beyond_cases"]


@dataclass(frozen=True)
class Beyond:
    """A model and what upstream makes of it.

    Attributes:
        case: the model.
        error: pattern of upstream's error, type and text; empty where it writes a file.
        wrong: for a file that computes something else: in what.
    """

    case: Case
    error: str = ""
    wrong: str = ""


class Vision(nn.Module):
    """Convolution, batch norm, pooling: the stem of most image models."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)
        self.norm.running_mean = torch.linspace(-0.5, 0.5, 4)
        self.norm.running_var = torch.linspace(0.5, 1.5, 4)

    def forward(self, image: Tensor) -> Tensor:
        """[N, 3, H, W] to [N, 2]."""
        x = functional.max_pool2d(functional.relu(self.norm(self.conv(image))), 2)
        result: Tensor = self.head(x.mean((2, 3)))
        return result


class Recurrent(nn.Module):
    """An LSTM or GRU and a head."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.cell, self.head = kind(4, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, 4] to [N, T, 2]."""
        result: Tensor = self.head(self.cell(x)[0])
        return result


class Branches(nn.Module):
    """A condition on data, with a constant in one branch and another condition in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 4]."""

        def inner(v: Tensor) -> Tensor:
            result: Tensor = torch.cond(v.mean() > 2, torch.neg, torch.sin, (v,))
            return result

        result: Tensor = torch.cond(
            x.sum() > 0, lambda v: self.linear(v) + torch.tensor([1.0, 2.0, 3.0, 4.0]), inner, (x,)
        )
        return result


class Frequencies(nn.Module):
    """A buffer that is not saved and never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.inv_freq = nn.Buffer(torch.linspace(1, 0.1, 4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 4]."""
        return (x * self.inv_freq).cos()


class Given(nn.Module):
    """Returns a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[3, 4]."""
        return self.table, x + self.table


def loop(x: Tensor) -> Tensor:
    """Doubles until the sum is large."""
    from torch._higher_order_ops.while_loop import while_loop

    (result,) = while_loop(lambda v: v.sum() < 100, lambda v: (v * 2,), (x,))  # type: ignore[no-untyped-call]
    return result  # type: ignore[no-any-return]


def rows(x: Tensor) -> Tensor:
    """A function of each row."""
    from torch._higher_order_ops.map import map as map_rows

    def body(row: Any) -> Any:
        return row.cumsum(0) * 2

    return map_rows(body, x)  # type: ignore[no-any-return, arg-type]


def steps(x: Tensor) -> tuple[Tensor, Tensor]:
    """A recurrence."""
    from torch._higher_order_ops.scan import scan

    last, every = scan(lambda h, v: (torch.tanh(h + v), h * 1), torch.zeros(x.shape[1]), x)
    return last, every


def unread(x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001  # that is the point
    """Does not read its second argument."""
    return x + 1


def spectrum(x: Tensor) -> Tensor:
    """Magnitudes of short-time Fourier transforms."""
    return torch.stft(x, 8, window=torch.hann_window(8), return_complex=True).abs()


def padded_low(x: Tensor) -> Tensor:
    """The largest of padded rows."""
    return functional.pad(x, (1, 1), value=float("-inf")).amax(1)


def counted(x: Tensor, count: Tensor) -> Tensor:
    """A number from data, and a check of it."""
    number = count.item()
    torch._check(number >= 0)  # type: ignore[no-untyped-call]
    return x * number


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding in complex numbers."""
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def quantized(config: Any, embedding: bool = False) -> nn.Module:
    """A model whose weights torchao has quantised."""
    from torchao.quantization import quantize_

    model = nn.Sequential(nn.Embedding(16, 64), nn.Linear(64, 64), nn.Linear(64, 8)).eval()
    quantize_(model[0 if embedding else 1], config)
    return model


def int4_weights() -> nn.Module:
    """4-bit weights in groups of 32."""
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup

    return quantized(IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))  # type: ignore[attr-defined]


def int4_embedding() -> nn.Module:
    """A table in 4 bits."""
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_

    model = nn.Sequential(nn.Embedding(16, 64), nn.Linear(64, 8)).eval()
    config = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))  # type: ignore[attr-defined]
    quantize_(model, config, filter_fn=lambda module, _: isinstance(module, nn.Embedding))
    return model


def dynamic_int8() -> nn.Module:
    """8da4w: 4-bit weights, activations quantised to 8 bits while the model runs."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerGroup

    config = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32))  # type: ignore[attr-defined]
    return quantized(config)


def gguf_weights() -> nn.Module:
    """A weight in blocks of a GGUF file, in upstream's own tensor class."""
    from executorch.extension.llm.export.gguf import ExportableGGUFTensor

    kind = next(kind for kind in GGUF_TYPES.values() if kind.name == "q4_k")
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 256, (8, kind.nbytes), np.uint8)
    blocks[:, :4] = np.full((8, 2), 0.01, np.float16).view(np.uint8)  # the scales
    model = nn.Linear(kind.elements, 8)
    weight = ExportableGGUFTensor.from_raw(torch.from_numpy(blocks), "q4_k", torch.float32)
    model.weight = nn.Parameter(weight, requires_grad=False)
    return model


SEVERAL = r"lowered to \d+ native delegates"
OUTSIDE = r"\d+ op\(s\) remain outside the delegate"
ORDER = "does not pass its inputs straight to the native delegate"
DTYPE = "Unsupported dtype for native serialization: torch.complex64"


def beyond_cases() -> list[Beyond]:
    """The models, with new inputs."""
    torch.manual_seed(2)
    x, row = torch.randn(3, 4), torch.randn(2, 6, 4)
    one, batch = Dim("batch", min=1, max=8), Dim("batch", min=2, max=8)
    ids = torch.tensor([[3, 0, 15]])
    infinity = float("inf")

    def plain(name: str, body: Any, *calls: tuple[Any, ...], **more: Any) -> Case:
        return case(name, function(body), *calls, **more)

    return [
        Beyond(case("batch norm and pooling", Vision, (torch.randn(2, 3, 8, 8),)), SEVERAL),
        Beyond(
            case("layer norm in the middle", lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)), (x,)), SEVERAL
        ),
        Beyond(
            case(
                "transformer encoder",
                lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
                (torch.randn(2, 5, 8),),
            ),
            SEVERAL,
        ),
        Beyond(case("LSTM", lambda: Recurrent(nn.LSTM), (row,)), SEVERAL),
        Beyond(case("GRU", lambda: Recurrent(nn.GRU), (row,)), SEVERAL),
        Beyond(plain("split, then used", lambda v: v.split(2, -1)[0] + v.split(2, -1)[1], (x,)), SEVERAL),
        Beyond(plain("top k, then used", lambda v: torch.topk(v, 2)[0].sum(-1), (x,)), SEVERAL),
        Beyond(
            case("conditions on data", Branches, (x.abs(),), (-x.abs(),)),
            "Attempting to use FunctionalTensor on its own",
        ),
        Beyond(plain("while loop", loop, (x.abs(),)), SEVERAL),
        Beyond(plain("map over rows", rows, (x,)), SEVERAL),
        Beyond(plain("scan", steps, (x,)), OUTSIDE),
        Beyond(plain("number from data, checked", counted, (x, torch.tensor(3))), OUTSIDE),
        Beyond(
            plain(
                "arithmetic on sizes",
                lambda v: torch.arange(v.shape[0] * 2 + 1) + v.sum(),
                (x,),
                dynamic=(({0: batch},),),
            ),
            SEVERAL,
        ),
        Beyond(plain("identity", lambda v: v, (x,)), SEVERAL),
        Beyond(
            plain("input that is a result", lambda v: (v, v + 1), (x,)), "which does not come from the native delegate"
        ),
        Beyond(plain("same result twice", lambda v: [v + 1] * 2, (x,)), "returns delegate output 0 in position 1"),
        Beyond(plain("literal results", lambda v: (v + 1, None, 3), (x,)), "returns literal None in position 1"),
        Beyond(plain("unused input", unread, (x, x)), ORDER),
        Beyond(plain("inputs read in another order", lambda v, w: (w * 2, v + 1), (x, x + 1)), ORDER),
        Beyond(plain("number as input", lambda v, n: v * n, (x, 3)), ORDER),
        Beyond(
            plain("infinite literal", lambda v: torch.where(v > 0, v, -infinity).softmax(-1), (x,)), "JSONDecodeError"
        ),
        Beyond(plain("infinite bound of an operator", padded_low, (x,)), "JSONDecodeError"),
        Beyond(case("parameter that is a result", Given, (x,)), r"constant data node \(p_table\) is tagged"),
        Beyond(plain("complex numbers", turned, (x, torch.randn(3, 2))), DTYPE),
        Beyond(plain("short-time Fourier transform", spectrum, (torch.randn(2, 32),)), DTYPE),
        Beyond(
            plain("input with gaps", lambda v: v * 2, (torch.randn(3, 8)[:, :4],)),
            "tensor is not dim-order expressible",
        ),
        Beyond(case("int4 weights of torchao", int4_weights, (ids,), atol=1e-4), OUTSIDE),
        Beyond(case("int4 embedding of torchao", int4_embedding, (ids,), atol=1e-4), OUTSIDE),
        Beyond(case("8da4w of torchao", dynamic_int8, (ids,), atol=1e-3), SEVERAL),
        Beyond(case("weights in GGUF blocks", gguf_weights, (torch.randn(2, 256),), atol=1e-3), OUTSIDE),
        Beyond(
            case("buffer that is not saved", Frequencies, (x,)),
            wrong="the buffer is stored as state that starts as zeros",
        ),
        Beyond(
            plain("declared minimum of 1", lambda v: v + 1, (x,), (torch.randn(1, 4),), dynamic=(({0: one},),)),
            wrong="the minimum is stored as 2",
        ),
        Beyond(
            plain("literal below 1e-12", lambda v: v.abs().clamp(min=1e-13).log(), (x * 0,)),
            wrong="the literal is stored as 0",
        ),
        Beyond(
            plain("input that changes", add_to_input, (x, x + 1)),
            wrong="the changed input is stored as one more result",
        ),
    ]
