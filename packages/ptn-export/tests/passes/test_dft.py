"""Short Fourier transforms become products with constant matrices; long ones stay operators."""

import io

import pytest
import torch
from ptn_export import to_native
from torch import nn

TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}
torch.manual_seed(0)
X = torch.randn(3, 4, 10)


class Call(nn.Module):
    def __init__(self, function, *buffers):
        super().__init__()
        self.function = function
        for i, buffer in enumerate(buffers):
            self.register_buffer(f"buffer_{i}", buffer)

    def forward(self, *args):
        results = self.function(*args, *self.buffers())
        results = results if isinstance(results, tuple) else (results,)
        return [torch.view_as_real(result.resolve_conj()) if result.is_complex() else result for result in results]


def transforms(x):
    z = torch.complex(x, x.flip(-1))
    return (
        torch.fft.rfft(x),
        torch.fft.rfft(x, dim=0, norm="ortho"),
        torch.fft.rfft(x, n=7),
        torch.fft.rfft2(x, norm="forward"),
        torch.fft.rfftn(x, dim=(2, 0)),
        torch.fft.fft(x),
        torch.fft.fft(z, dim=1),
        torch.fft.ifft(z),
        torch.fft.fft2(z, norm="ortho"),
        torch.fft.ifftn(z),
        torch.fft.irfft(z),
        torch.fft.irfft(z, n=7, dim=0),
        torch.fft.irfft(z, n=13, norm="ortho"),
        torch.fft.irfftn(z, s=(3, 4, 18)),
        torch.fft.hfft(z),
        torch.fft.ihfft(x),
        torch.fft.fftshift(torch.fft.fft(x)),
        torch.fft.rfftfreq(8, 0.1) + torch.fft.fftfreq(5),
        torch.fft.fftfreq(4, 2.0),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transforms(check_rewrite, operators, dtype):
    tolerance = TOLERANCE if dtype is torch.float32 else {"rtol": 1e-11, "atol": 1e-12}
    # Equal transforms are computed once.
    native = check_rewrite(Call(transforms), (X.to(dtype),), expect={"dft": 16}, **tolerance)
    assert not any("_fft" in name or "complex" in name for name in operators(native))


def stft(x, window):
    return torch.stft(x, 16, hop_length=4, window=window, return_complex=True).abs().log1p()


def test_short_time_transforms_of_any_length(check_rewrite):
    b, t = torch.export.Dim("b", min=1, max=4), torch.export.Dim("t", min=16, max=512)
    more = [(torch.randn(1, 16),), (torch.randn(3, 201),)]
    check_rewrite(
        Call(stft, torch.hann_window(16)),
        (torch.randn(2, 64),),
        *more,
        dynamic_shapes=(({0: b, 1: t},),),
        expect={"dft": 1},
        **TOLERANCE,
    )


def there_and_back(x, window):
    z = torch.stft(x, 16, hop_length=4, window=window, return_complex=True)
    return torch.istft(z * 2, 16, hop_length=4, window=window)


def test_there_and_back(check_rewrite, operators):
    t = 4 * torch.export.Dim("t", min=4, max=64)
    native = check_rewrite(
        Call(there_and_back, torch.hann_window(16)),
        (torch.randn(2, 64),),
        (torch.randn(2, 20),),
        dynamic_shapes=(({1: t},),),
        expect={"dft": 2},
        **TOLERANCE,
    )
    assert operators(native)["aten.index_put.default"] == 2


def test_long_transforms_stay(check_rewrite, operators):
    def function(x):
        z = torch.fft.rfft(x)
        return torch.fft.irfft(z * 2), torch.fft.ifft(torch.fft.fft(z))

    x = torch.randn(2, 1026)
    native = check_rewrite(Call(function), (x,), expect={"dft": 0}, ggml=False, **TOLERANCE)
    found = operators(native)
    assert found["aten._fft_r2c.default"] == found["aten._fft_c2r.default"] == 1
    assert found["aten._fft_c2c.default"] == 2


def test_transforms_of_varying_length_stay(check_rewrite):
    n = torch.export.Dim("n", min=2, max=64)
    check_rewrite(
        Call(lambda x: torch.fft.rfft(x)),
        (X,),
        (torch.randn(3, 4, 33),),
        dynamic_shapes=(({2: n},),),
        expect={"dft": 0},
        ggml=False,
        **TOLERANCE,
    )


def test_a_matrix_is_stored_once():
    def function(x):
        return torch.fft.rfft(x), torch.fft.rfft(x * x)

    exported = torch.export.export(Call(function), (torch.randn(2, 64),))
    native = to_native({"a": exported, "b": exported})
    (key,) = native.constants
    assert key.startswith("dft_64_66.folded_")
    file = io.BytesIO()
    native.save(file)
    assert len(file.getvalue()) < 64 * 66 * 4 + 8000


def test_the_pass_can_be_switched_off(check):
    exported = torch.export.export(Call(lambda x: torch.fft.rfft(x)), (X,))
    native = to_native(exported, disable_passes=("dft",))
    graph = native.program.methods[0].graph
    targets = [node.target for node in graph.nodes if node.target]
    assert targets == ["torch.ops.aten._fft_r2c.default", "torch.ops.aten.view_as_real_copy.default"]
    (spectrum,) = [node.outputs[0].name for node in graph.nodes if "_fft" in (node.target or "")]
    meta = graph.tensor_values[spectrum]
    assert meta.dtype.torch_name == "float32"
    assert [dim.min for dim in meta.sizes] == [3, 4, 6, 2]
