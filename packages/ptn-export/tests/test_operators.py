"""What common layers become, and that it computes the same."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def _settled(module):
    generator = torch.Generator().manual_seed(0)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.copy_(torch.randn(layer.num_features, generator=generator))
            layer.running_var.copy_(torch.rand(layer.num_features, generator=generator) + 0.5)
    return module.eval()


def test_batch_norm_in_eval_mode(check):
    module = _settled(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU6()))
    batch = torch.export.Dim("batch", min=1, max=4)
    native = check(module, (torch.randn(2, 3, 6, 5),), (torch.randn(1, 3, 6, 5),), dynamic_shapes=({0: batch},))
    assert native.report.methods[0].operators == {"aten.convolution.default": 1, "aten.hardtanh.default": 1}
    assert "1.num_batches_tracked" not in native.constants


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(check, layer, bidirectional):
    torch.manual_seed(1)
    module = layer(3, 4, num_layers=2, batch_first=True, bidirectional=bidirectional).eval()
    batch = torch.export.Dim("batch", min=1, max=8)
    native = check(module, (torch.randn(2, 5, 3),), (torch.randn(7, 5, 3),), dynamic_shapes=({0: batch},))
    assert native.report.methods[0].operators["aten.linear.default"] == 2 * (5 + 1) * (1 + bidirectional)


def test_transformer_encoder_layer_keeps_attention_and_linear_whole(check):
    torch.manual_seed(2)
    module = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True).eval()
    operators = check(module, (torch.randn(2, 5, 8),)).report.methods[0].operators
    assert operators["aten.scaled_dot_product_attention.default"] == 1
    assert operators["aten.linear.default"] == 4
    assert operators["aten.native_layer_norm.default"] == 2


def test_rms_norm_matmul_and_addmm_stay_whole(check):
    def function(x, w, b):
        return F.rms_norm(x, (4,)), x @ w, torch.addmm(b, x, w), torch.matmul(x[None], w)

    native = check(Call(function), (torch.randn(3, 4), torch.randn(4, 2), torch.randn(2)))
    operators = native.report.methods[0].operators
    assert operators["aten.rms_norm.default"] == 1
    assert operators["aten.addmm.default"] == 1
    assert operators["aten.matmul.default"] == 2


X = torch.randn(2, 3, 8, 6, generator=torch.Generator().manual_seed(3))
V = torch.randn(4, 6, generator=torch.Generator().manual_seed(4))
INDEX = torch.randint(0, 4, (4, 6), generator=torch.Generator().manual_seed(5))

FUNCTIONS = {
    "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(X, (3, 2)),
    "addbmm": lambda: torch.addbmm(V[:, :4], V[None], V.T[None], beta=0.5, alpha=2),
    "avg_pool1d": lambda: F.avg_pool1d(X[0], 2),
    "bicubic": lambda: F.interpolate(X, (5, 9), mode="bicubic"),
    "bilinear": lambda: F.interpolate(X, scale_factor=1.5, mode="bilinear"),
    "circular_pad": lambda: F.pad(X, (1, 2, 1, 0), "circular"),
    "conv1d": lambda: F.conv1d(X[0], torch.ones(4, 8, 3)),
    "conv_same": lambda: F.conv2d(X, torch.ones(4, 3, 3, 3), padding="same"),
    "conv_transpose": lambda: F.conv_transpose2d(X, torch.ones(3, 4, 3, 3), stride=2, output_padding=1),
    "cosine_similarity": lambda: F.cosine_similarity(V, V.flip(0)),
    "cumsum": lambda: V.cumsum(1),
    "dist": lambda: torch.dist(V, V.flip(0)),
    "einsum": lambda: torch.einsum("bchw,dh->bdcw", X, torch.ones(5, 8)),
    "embedding": lambda: F.embedding(INDEX, V),
    "embedding_bag": lambda: F.embedding_bag(INDEX, V, mode="mean"),
    "exp2": lambda: torch.exp2(V),
    "fmax": lambda: torch.fmax(torch.where(V > 0, V, torch.nan), V.flip(0)),
    "fmin": lambda: torch.fmin(V, torch.where(V > 0, V, torch.nan)),
    "fold": lambda: F.fold(torch.ones(1, 12, 9), (4, 4), 2),
    "gather": lambda: V.gather(0, INDEX),
    "gelu": lambda: (F.gelu(V), F.gelu(V, approximate="tanh")),
    "grid_sample": lambda: F.grid_sample(X, torch.linspace(-1.5, 1.5, 36).reshape(2, 3, 3, 2), align_corners=False),
    "group_norm": lambda: F.group_norm(X, 3),
    "index_add": lambda: V.index_add(0, INDEX[0], torch.ones(6, 6)),
    "instance_norm": lambda: F.instance_norm(X),
    "layer_norm": lambda: F.layer_norm(X, (8, 6)),
    "logsumexp": lambda: torch.logsumexp(V, 1),
    "masked_fill": lambda: V.masked_fill(V > 0, float("-inf")),
    "max": lambda: (V.max(), V.min(), INDEX.max(), (INDEX > 2).max()),
    "max_pool2d": lambda: F.max_pool2d(X, 3, 2, 1),
    "max_pool2d_indices": lambda: F.max_pool2d(X, 2, return_indices=True),
    "mish": lambda: F.mish(V),
    "nearest": lambda: F.interpolate(X, scale_factor=2),
    "normalize": lambda: F.normalize(V, dim=-1),
    "pixel_shuffle": lambda: F.pixel_shuffle(X.reshape(2, 1, 3, 8, 6).expand(2, 4, 3, 8, 6).flatten(1, 2), 2),
    "reflect_pad": lambda: F.pad(X, (1, 2, 3, 0), "reflect"),
    "repeat_interleave": lambda: V.repeat_interleave(3, 0),
    "replicate_pad": lambda: (F.pad(X, (1, 2, 3, 0), "replicate"), F.pad(X[0], (1, 2), "replicate")),
    "roll": lambda: V.roll((1, -2), (0, 1)),
    "round_decimals": lambda: (V.round(decimals=2), (V * 1000).round(decimals=-2), V.round(decimals=0)),
    "scatter_reduce": lambda: (V.scatter(0, INDEX, V, reduce="add"), V.scatter(0, INDEX, V, reduce="multiply")),
    "select_scatter": lambda: V.select_scatter(torch.zeros(6), 0, 1),
    "shifts": lambda: (INDEX << 2, INDEX >> 1, 1 << INDEX, torch.bitwise_left_shift(INDEX, INDEX)),
    "silu": lambda: F.silu(V),
    "softplus": lambda: F.softplus(V),
    "sort": lambda: torch.sort(INDEX, stable=True),
    "split": lambda: V.split([1, 2, 3], 1),
    "std": lambda: (V.std(), V.std(1, correction=0), *torch.var_mean(V, 0), *torch.std_mean(V)),
    "topk": lambda: V.topk(3),
    "tril": lambda: (V.tril(), V.triu(1)),
    "unbind": lambda: V.unbind(0),
    "unfold": lambda: (F.unfold(X, 2), V.unfold(1, 3, 2)),
    "vector_norm": lambda: (V.norm(), torch.linalg.vector_norm(V, 1, 1), torch.linalg.vector_norm(V, float("inf"))),
    "view_dtype": lambda: V.view(torch.int32),
}


@pytest.mark.parametrize("group", range(6))
def test_functions(check, group):
    """A program per group of functions. The tensors of the table become inputs, so that nothing is folded away."""

    def call(x, v, index):
        tensors = {"X": x, "V": v, "INDEX": index}
        names = sorted(FUNCTIONS)[group::6]
        return {name: eval(FUNCTIONS[name].__code__, {**globals(), **tensors}) for name in names}

    check(Call(call), (X, V, INDEX), rtol=1e-4, atol=1e-5)


def test_no_op_copies_and_views_are_dropped(check):
    def function(x):
        y = x.clone().contiguous().detach().float().view(2, 3).expand(2, 3)[:, :]
        return y.reshape(2, 3) + 1

    native = check(Call(function), (torch.randn(2, 3),))
    assert native.report.methods[0].operators == {"aten.add.Scalar": 1}


def test_low_precision(check):
    module = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.SiLU()).eval()
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        check(module.to(dtype), (torch.randn(2, 4, dtype=dtype),))


def test_source_lines_are_kept(check):
    native = check(Call(lambda x: torch.relu(x)), (torch.randn(2),))
    (node,) = [node for node in native.program.methods[0].graph.nodes if node.target]
    file, _, line = node.metadata["ptn.source"].partition(":")
    assert file == "test_operators.py"
    assert line.isdecimal()
