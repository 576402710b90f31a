"""Complex numbers: rotary embeddings with a complex table, and the front ends of speech models."""

import pytest
import torch
from torch import nn

BATCH, TIME = torch.export.Dim("batch", min=1, max=4), torch.export.Dim("time", min=1, max=16)


class Rotation(nn.Module):
    """A rotary embedding whose table is a complex buffer, cut to the length of the input."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        angles = torch.arange(16.0, dtype=dtype)[:, None] * 10000.0 ** (-torch.arange(0, 4, dtype=dtype) / 4)
        self.register_buffer("frequencies", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x):
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * self.frequencies[: x.shape[-2]]
        return torch.view_as_real(z).flatten(-2)


# https://github.com/pytorch/pytorch/issues/160749, https://github.com/safetensors/safetensors/issues/489,
# https://github.com/lutzroeder/netron/issues/1508
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotation_by_a_complex_table(everywhere, dtype):
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype is torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    native = everywhere(
        Rotation(dtype),
        (torch.randn(2, 2, 5, 8, dtype=dtype),),
        (torch.randn(1, 2, 1, 8, dtype=dtype),),
        (torch.randn(4, 2, 16, 8, dtype=dtype),),
        dynamic_shapes={"x": {0: BATCH, 2: TIME}},
        **tolerance,
    )
    assert not any("complex" in (node.target or "") for node in native.program.methods[0].graph.nodes)


class LogMel(nn.Module):
    """Short-time Fourier transform, power, mel bands, logarithm, and the range below the loudest."""

    def __init__(self, double=False):
        super().__init__()
        generator = torch.Generator().manual_seed(54)
        self.register_buffer("window", torch.hann_window(64))
        self.register_buffer("mel", torch.rand(10, 33, generator=generator))
        if double:
            self.double()

    def forward(self, wave):
        z = torch.stft(wave, 64, hop_length=16, window=self.window, center=True, return_complex=True)
        power = z.real**2 + z.imag**2
        bands = (self.mel @ power).clamp(min=1e-10).log10()
        bands = torch.maximum(bands, bands.max() - 8.0)
        return (bands + 4.0) / 4.0


# https://github.com/pytorch/executorch/issues/11332, https://github.com/pytorch/executorch/issues/13520,
# https://github.com/pytorch/pytorch/issues/126972
@pytest.mark.parametrize("double", [False, True])
def test_speech_front_end(everywhere, double):
    generator = torch.Generator().manual_seed(154)
    # PyTorch exports the transform with a length that varies only where the batch does too.
    waves = [torch.randn(batch, n, generator=generator) * 0.1 for batch, n in ((2, 512), (1, 64), (1, 1000))]
    waves = [wave.double() if double else wave for wave in waves]
    native = everywhere(
        LogMel(double),
        *[(wave,) for wave in waves],
        dynamic_shapes={"wave": {0: BATCH, 1: torch.export.Dim("samples", min=64, max=4096)}},
        expect=lambda result: assert_finite(result),
        rtol=1e-4,
        atol=1e-5,
    )
    targets = {node.target for node in native.program.methods[0].graph.nodes if node.target}
    assert "torch.ops.aten.matmul.default" in targets
    assert not any("fft" in target for target in targets)


def assert_finite(result):
    assert torch.isfinite(torch.as_tensor(result)).all()
