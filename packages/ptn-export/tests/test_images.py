"""Operations on images whose number and height vary: both engines give what eager PyTorch gives."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

CALLS = [(2, 3, 12, 16), (1, 3, 20, 16), (3, 3, 16, 16)]


def axes():
    """Any number of images, a height that is a multiple of 4. A width that varies, too, takes twice the time."""
    batch, height = torch.export.Dim("batch", min=1, max=4), torch.export.Dim("height", min=2, max=10)
    return {0: batch, 2: 4 * height}


def everywhere(check, module, layout=torch.contiguous_format):
    generator = torch.Generator().manual_seed(0)
    first, *more = ((torch.randn(shape, generator=generator).contiguous(memory_format=layout),) for shape in CALLS)
    engines = ("reference", "ggml")
    return check(module.eval(), first, *more, dynamic_shapes=(axes(),), engines=engines, rtol=1e-4, atol=1e-5)


def resized(x):
    features = F.avg_pool2d(x, 3, 2, 1)
    return {
        "nearest": F.interpolate(x, scale_factor=2),
        "exact": F.interpolate(x, scale_factor=2.0, mode="nearest-exact"),
        "bilinear": F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
        "half": F.interpolate(x, scale_factor=0.5, mode="bilinear"),
        "per axis": F.interpolate(x, scale_factor=(2.0, 3.0), mode="bicubic"),
        "a size": F.interpolate(x, (7, 9), mode="bilinear", align_corners=True),
        "a multiple": F.interpolate(x, (2 * x.shape[2], 3 * x.shape[3]), mode="bicubic"),
        "of other features": F.interpolate(features, x.shape[-2:], mode="bilinear", align_corners=False),
        "antialiased": F.interpolate(x, (5, 7), mode="bilinear", antialias=True),
    }


def pooled(x):
    return {
        "mean": F.adaptive_avg_pool2d(x, 1),
        "grid of means": F.adaptive_avg_pool2d(x, (3, 2)),
        "one axis": F.adaptive_avg_pool2d(x, (3, None)),
        "grid of maxima": F.adaptive_max_pool2d(x, (3, 2)),
        "ceil": F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        "dilated": F.max_pool2d(x, 3, 1, dilation=2),
        "without padding": F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        "pyramid": [F.interpolate(F.adaptive_avg_pool2d(x, n), x.shape[-2:]) for n in (1, 2, 4)],
    }


def sampled(x):
    """Positions of its own, and those of every pixel moved by the image itself."""
    rows = torch.linspace(-1.2, 1.2, 7).view(-1, 1).expand(7, 5)
    grid = torch.stack((rows, rows.flip(0) * 0.5), -1).expand(x.shape[0], -1, -1, -1)
    height, width = x.shape[-2:]
    down, right = torch.arange(height) * (2 / height) - 1, torch.arange(width) * (2 / width) - 1
    places = torch.stack(torch.meshgrid(down, right, indexing="ij")[::-1], -1)
    moved = places + 0.1 * x[:, :2].permute(0, 2, 3, 1)
    return [
        *(F.grid_sample(x, grid, mode=mode, align_corners=False) for mode in ("bilinear", "nearest", "bicubic")),
        *(F.grid_sample(x, moved, padding_mode=edge, align_corners=True) for edge in ("reflection", "border")),
    ]


def regrouped(x):
    return {
        "shuffled": F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2),
        "unshuffled": F.pixel_unshuffle(x, 4),
        "unfolded": F.unfold(x, 4, stride=4),
        "folded": F.fold(F.unfold(x, 3, padding=1), x.shape[-2:], 3, padding=1),
        "padded": [F.pad(x, (2, 1, 0, 3), mode) for mode in ("reflect", "replicate", "circular", "constant")],
        "channels": nn.ChannelShuffle(3)(x),
    }


def windows(x):
    """Swin's shift and split into windows of 3 x 3, and back."""
    n, c, h, w = x.shape
    y = F.pad(x, (0, -w % 3, 0, -h % 3)).roll((-1, -1), (2, 3))
    rows, columns = y.shape[2] // 3, y.shape[3] // 3
    y = y.view(n, c, rows, 3, columns, 3).permute(0, 2, 4, 1, 3, 5).flatten(4).softmax(-1)
    y = y.view(n, rows, columns, c, 3, 3).permute(0, 3, 1, 4, 2, 5).reshape(n, c, rows * 3, columns * 3)
    return y.roll((1, 1), (2, 3))[:, :, :h, :w]


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("function", [resized, pooled, sampled, regrouped, windows], ids=lambda f: f.__name__)
def test_functions(check, function):
    everywhere(check, Function(function))


class Layers(nn.Module):
    """Convolutions with norms behind and in front of them, and their kinds of padding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleDict(
            {
                "norm behind": nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.BatchNorm2d(6), nn.Hardswish()),
                "norm in front": nn.Sequential(nn.BatchNorm2d(3), nn.ReLU6(), nn.Conv2d(3, 4, 3, 2)),
                "transposed": nn.Sequential(
                    nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), nn.BatchNorm2d(4)
                ),
                "padding": nn.Sequential(
                    nn.Conv2d(3, 4, (3, 4), padding="same", dilation=2),
                    nn.Conv2d(4, 4, 3, padding=2, padding_mode="circular"),
                ),
                "depthwise": nn.Sequential(nn.Conv2d(3, 6, 5, padding=2, groups=3), nn.GELU(), nn.Conv2d(6, 4, 1)),
                "norms": nn.Sequential(
                    nn.InstanceNorm2d(3, affine=True), nn.GroupNorm(3, 3), nn.LocalResponseNorm(2), nn.Softmax2d()
                ),
            }
        )
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_()
                part.running_var.uniform_(0.5, 2)
                nn.init.normal_(part.weight)
                nn.init.normal_(part.bias)

    def forward(self, x):
        return {name: layer(x) for name, layer in self.layers.items()}


def test_layers_and_images_with_channels_last(check):
    native = everywhere(check, Layers().to(memory_format=torch.channels_last), torch.channels_last)
    assert native.rewrites["forward"]["batch_norm"] == 2
