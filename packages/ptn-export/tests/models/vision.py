"""ResNet-18 and MobileNetV2 by shape, with random weights and settled batch-norm statistics."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def convolution(inputs, outputs, kernel, stride=1, groups=1, activation: nn.Module | None = None) -> nn.Sequential:
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    if activation is not None:
        layers.append(activation)
    return nn.Sequential(*layers)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = convolution(inputs, outputs, 3, stride, activation=nn.ReLU(inplace=True))
        self.second = convolution(outputs, outputs, 3)
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, x):
        return F.relu(self.second(self.first(x)) + self.skip(x), inplace=True)


class ResNet18(nn.Module):
    def __init__(self, classes=1000, width=64):
        super().__init__()
        stem = convolution(3, width, 7, 2, activation=nn.ReLU(inplace=True))
        self.stem = nn.Sequential(stem, nn.MaxPool2d(3, 2, 1))
        blocks, inputs = [], width
        for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
            blocks += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
            inputs = outputs
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.body(self.stem(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, stride, expansion):
        super().__init__()
        hidden = inputs * expansion
        layers = [] if expansion == 1 else [convolution(inputs, hidden, 1, activation=nn.ReLU6())]
        layers += [
            convolution(hidden, hidden, 3, stride, groups=hidden, activation=nn.ReLU6()),
            convolution(hidden, outputs, 1),
        ]
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x):
        y = self.layers(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    CONFIGURATION = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self, classes=1000):
        super().__init__()
        layers, inputs = [convolution(3, 32, 3, 2, activation=nn.ReLU6())], 32
        for expansion, outputs, count, stride in self.CONFIGURATION:
            for i in range(count):
                layers.append(InvertedResidual(inputs, outputs, stride if i == 0 else 1, expansion))
                inputs = outputs
        layers.append(convolution(inputs, 1280, 1, activation=nn.ReLU6()))
        self.body = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def settle(model: nn.Module) -> nn.Module:
    """Gives batch norms statistics of a trained network, so that activations stay of the order of one."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.8, 1.2)
    return model.eval().requires_grad_(False)


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return settle({"resnet18": ResNet18, "mobilenetv2": MobileNetV2}[name]())


def export_dynamic_batch(model: nn.Module, size: int = 64) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=8)
    return torch.export.export(model, (torch.randn(2, 3, size, size),), dynamic_shapes={"x": {0: batch}})
