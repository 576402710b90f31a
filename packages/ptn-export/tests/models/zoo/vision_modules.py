"""Networks for images that no package on PyPI gives, or only together with another build of torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, SiLU: what detectors are made of."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs, eps=1e-3), nn.SiLU(inplace=True))


class Split(nn.Module):
    """YOLOv8's block: one half goes on through residual bottlenecks, and every stage is kept."""

    def __init__(self, inputs: int, outputs: int, shortcut: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.enter = convolution(inputs, outputs, 1)
        self.bottleneck = nn.Sequential(convolution(half, half), convolution(half, half))
        self.leave = convolution(3 * half, outputs, 1)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        y = self.bottleneck(parts[-1])
        parts.append(parts[-1] + y if self.shortcut else y)
        return self.leave(torch.cat(parts, 1))


class PyramidPooling(nn.Module):
    """Maxima over windows that grow, side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = convolution(channels, channels // 2, 1)
        self.leave = convolution(2 * channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return self.leave(torch.cat(parts, 1))


class Detector(nn.Module):
    """A detector in the manner of YOLOv8: backbone, a neck up and down again, heads on two scales.

    Edges of boxes are means of distributions over `bins` distances; the best `count` boxes are returned, in pixels.
    """

    STRIDES = (8, 16)

    def __init__(self, classes: int = 5, width: int = 8, bins: int = 8, count: int = 9) -> None:
        super().__init__()
        fine, coarse = 2 * width, 4 * width
        self.outputs = (4 * bins, classes)
        self.stem = nn.Sequential(convolution(3, width, 3, 2), convolution(width, width, 3, 2))
        self.down = nn.Sequential(convolution(width, fine, 3, 2), Split(fine, fine, shortcut=True))
        self.deep = nn.Sequential(convolution(fine, coarse, 3, 2), PyramidPooling(coarse))
        self.upsample = nn.Upsample(scale_factor=2)
        self.top_down = Split(fine + coarse, fine, shortcut=False)
        self.shrink = convolution(fine, fine, 3, 2)
        self.bottom_up = convolution(fine + coarse, coarse, 1)
        self.heads = nn.ModuleList(
            nn.Sequential(convolution(n, fine), nn.Conv2d(fine, sum(self.outputs), 1)) for n in (fine, coarse)
        )
        self.register_buffer("distances", torch.arange(bins, dtype=torch.float32), persistent=False)
        self.count = count

    def features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The features of each scale."""
        fine = self.down(self.stem(images))
        coarse = self.deep(fine)
        fine = self.top_down(torch.cat((self.upsample(coarse), fine), 1))
        return fine, self.bottom_up(torch.cat((self.shrink(fine), coarse), 1))

    def decode(self, x: Tensor, stride: int) -> Tensor:
        """Distributions [batch, 4 * bins, height, width] as boxes [batch, height * width, 4]: x, y, x, y."""
        n, _, height, width = x.shape
        shares = x.reshape(n, 4, self.distances.numel(), height * width).softmax(2)
        left, top, right, bottom = torch.einsum("nebp,b->npe", shares, self.distances).unbind(-1)
        rows = torch.arange(height, device=x.device) + 0.5
        columns = torch.arange(width, device=x.device) + 0.5
        y, x = (grid.flatten() for grid in torch.meshgrid(rows, columns, indexing="ij"))
        return torch.stack((x - left, y - top, x + right, y + bottom), -1) * stride

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        boxes, scores = [], []
        for features, head, stride in zip(self.features(images), self.heads, self.STRIDES, strict=True):
            edges, classes = head(features).split(self.outputs, 1)
            boxes.append(self.decode(edges, stride))
            scores.append(classes.flatten(2).transpose(1, 2).sigmoid())
        best, labels = torch.cat(scores, 1).max(-1)
        best, places = best.topk(self.count, dim=1)
        return {
            "boxes": torch.cat(boxes, 1).gather(1, places[..., None].expand(-1, -1, 4)),
            "scores": best,
            "labels": labels.gather(1, places),
        }


def double(inputs: int, outputs: int) -> nn.Sequential:
    """U-Net's pair of convolutions."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Down by pooling, up again by transposed convolutions or by interpolation, with the skipped features beside.

    Interpolation goes to the size of the skipped features, so that images may have any size.
    """

    def __init__(self, transposed: bool, channels: Sequence[int] = (8, 16, 32), classes: int = 3) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(channels))
        self.enter = double(3, channels[0])
        self.down = nn.ModuleList(double(fine, coarse) for fine, coarse in pairs)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(coarse, fine, 2, 2) if transposed else nn.Conv2d(coarse, fine, 1)
            for fine, coarse in reversed(pairs)
        )
        self.merge = nn.ModuleList(double(2 * fine, fine) for fine, _ in reversed(pairs))
        self.head = nn.Conv2d(channels[0], classes, 1)
        self.transposed = transposed

    def forward(self, images: Tensor) -> Tensor:
        x = self.enter(images)
        skipped = []
        for down in self.down:
            skipped.append(x)
            x = down(F.max_pool2d(x, 2))
        for up, merge in zip(self.up, self.merge, strict=True):
            fine = skipped.pop()
            x = up(x)
            if not self.transposed:
                x = F.interpolate(x, size=fine.shape[-2:], mode="bilinear", align_corners=False)
            x = merge(torch.cat((fine, x), 1))
        return self.head(x)


class SuperResolution(nn.Module):
    """Residual blocks at the small size, `pixel_shuffle` to the large one, added to the bicubic enlargement."""

    def __init__(self, factor: int = 3, width: int = 12) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(2)
        )
        self.leave = nn.Conv2d(width, 3 * factor**2, 3, padding=1, padding_mode="reflect")
        self.factor = factor

    def forward(self, image: Tensor) -> Tensor:
        x = self.enter(image)
        for block in self.blocks:
            x = x + block(x)
        details = F.pixel_shuffle(self.leave(x), self.factor)
        return F.interpolate(image, details.shape[-2:], mode="bicubic", align_corners=False) + details


class Mixer(nn.Module):
    """MLP-Mixer: linear layers over patches and over channels in turn."""

    def __init__(self, size: int = 32, patch: int = 8, width: int = 24, layers: int = 2, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.ModuleList(
            nn.ModuleList((nn.LayerNorm(width), self.mlp((size // patch) ** 2), nn.LayerNorm(width), self.mlp(width)))
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    @staticmethod
    def mlp(width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        for first_norm, patches, second_norm, channels in self.blocks:
            x = x + patches(first_norm(x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(second_norm(x))
        return self.head(self.norm(x).mean(1))


class SpatialTransformer(nn.Module):
    """Straightens the image by an affine map that it predicts from it, then classifies it."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.locate = nn.Sequential(
            nn.Conv2d(3, 8, 7), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(8, 10, 5), nn.AdaptiveMaxPool2d(3), nn.ReLU()
        )
        self.affine = nn.Linear(90, 6)
        self.classify = nn.Sequential(
            nn.Conv2d(3, 10, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(160, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        theta = self.affine(self.locate(images).flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(theta, images.shape, align_corners=False)
        return self.classify(F.grid_sample(images, grid, padding_mode="border", align_corners=False)).log_softmax(1)
