"""Element by element: halves, NaN, results without axes, mixed types, activations over a wide range."""

import pytest
import torch
import torch.nn.functional as F

NAN, INF = float("nan"), float("inf")


# https://github.com/pytorch/executorch/pull/21065, https://github.com/pytorch/executorch/pull/8506
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_halves_go_to_the_even_neighbour(everywhere, call, dtype):
    def function(x):
        return (
            torch.round(x),
            (torch.round(x, decimals=1), torch.round(x * 100, decimals=-2)),
            (x.trunc(), x.floor(), x.ceil(), x.frac()),
            (x.to(torch.int32), x.to(torch.int64), (x > 0).to(x.dtype)),
        )

    halves = [-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 3.5, 0.25, 0.75, -0.25, 2.0]

    def expect(results):
        assert results[0].tolist() == [-2, -2, 0, 0, 0, 2, 2, 4, 0, 1, 0, 2]
        assert torch.signbit(results[0][[2, 3, 10]]).all()

    everywhere(call(function), (torch.tensor(halves, dtype=dtype),), expect=expect)


# https://github.com/pytorch/pytorch/issues/130826, https://github.com/pytorch/pytorch/issues/72307,
# https://github.com/NVIDIA/TensorRT/issues/4773
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_nan_passes_through(everywhere, call, dtype):
    def function(x, y, low, high):
        return (
            [
                x.clamp(low, high),
                x.clamp(-1, 1),
                x.clamp(min=-1),
                x.clamp(max=high),
                F.relu(x),
                F.relu6(x),
                F.hardtanh(x),
            ],
            [torch.maximum(x, y), torch.minimum(x, y), x.amax(-1), x.amin(-1), x.max(), x.min()],
            [x.max(-1).indices, x.argmax(-1), x.min(-1).indices, x.argmin(-1)],
            [F.leaky_relu(x), F.elu(x), F.hardsigmoid(x), F.hardswish(x), F.gelu(x), F.silu(x), x.sign(), x.abs()],
            [torch.fmax(x, y), torch.fmin(x, y), x == x, x < y, x >= y, x != y, x.isnan(), x.isinf()],
            [x.cummax(-1)[0], x.sort(-1)[0], x.topk(2)[0], x.prod(-1), x.cumsum(-1)],
            [F.max_pool2d(x[None], (1, 2)), F.avg_pool2d(x[None], (1, 2)), F.adaptive_max_pool2d(x[None], (1, 2))],
            [x.nan_to_num(), x.nan_to_num(1.0, 2.0, -2.0), x.nansum(-1), torch.threshold(x, 0.1, 20.0)],
        )

    def expect(results):
        for result in results[0]:
            assert result[0, 0].isnan()
        assert results[1][0][0, :2].isnan().all()
        assert results[1][1][0, :2].isnan().all()
        for result in results[1][2:]:
            assert result.isnan().all()
        assert all(result.item() == 0 for result in results[2])

    x = torch.tensor([[NAN, 0.5, -3.0, INF]], dtype=dtype)
    y = torch.tensor([[0.0, NAN, 1.0, 1.0]], dtype=dtype)
    bounds = torch.tensor([-1.0], dtype=dtype), torch.tensor([1.0], dtype=dtype)
    everywhere(call(function), (x, y, *bounds), expect=expect)


# https://github.com/pytorch/executorch/issues/22331, https://github.com/pytorch/executorch/issues/10443
def test_results_without_axes(everywhere, call):
    def function(x, s, n):
        top = x.max()
        return (
            (top - (top - 1.0), x - top, s * 2, top > s, x.sum() / x.numel(), s + n, n // 2, n % 3, s**n),
            (s.sum(), s.mean(), s.max(), s.argmax(), s.softmax(0), s.cumsum(0), s.sort()[0], s.clamp(0, 0.1), s.sqrt()),
            (s.reshape(1), s[None, None], s.expand(2, 3), s.unsqueeze(0), x[3], x[3:4].squeeze(), s.view(())),
            (torch.stack([s, top]), torch.where(top > s, s, n), x.masked_fill(x > s, s), x.index_select(0, n)[0]),
            (
                torch.full((), 3.0) + s,
                torch.zeros(()),
                s.to(torch.int64),
                n.float(),
                torch.tensor(5) + n,
                s.permute(()),
            ),
        )

    def expect(results):
        assert results[0][0].shape == ()
        assert results[0][0].item() == 1.0
        assert results[0][2].item() == 0.5
        assert [tuple(r.shape) for r in results[1]] == [()] * 9

    everywhere(call(function), (torch.linspace(-1, 1, 64), torch.tensor(0.25), torch.tensor(2)), expect=expect)


# https://github.com/pytorch/executorch/issues/13589
def test_operands_of_different_rank_and_type(everywhere, call):
    def function(a, b, m, h, f, i):
        return (
            (a / b, b + a, a * m, m + m, a + 1.5, m & ~m, torch.where(m, a, b.float())),
            (m * 2, m + 1.5, a + True, i + a, i + h, h + f, a - f[:, None], i / 2, i // 2, i % 2, -a, a**2, i**2),
            (f > i, a == b, m == 1, m < i, torch.maximum(a, i), torch.minimum(f, i.to(f)), h * 2, h * i, h / f[0]),
            (f[0] + i, i[0] + h, h + f[0], f[0] * m, i[0] * m, i[0] + f[0], a + i[0], m + i[0]),  # 0-d beside n-d
            (torch.cat([a, i]), torch.stack([h, f.half()]), torch.add(i, m, alpha=2), a << 1, a & 3, a | i, a ^ i, ~i),
            (a.sum(), m.sum(), h.sum(), a.prod(), a.cumsum(0), m.cumsum(0), i.float().mean(), h.mean(), a.max()),
        )

    def expect(results):
        first = results[0]
        assert first[0].shape == (1, 5)
        assert [r.dtype for r in first[:5]] == [torch.float32, torch.int16, torch.int16, torch.bool, torch.float32]

    a = torch.arange(1, 6, dtype=torch.int16)
    numbers = torch.linspace(-2, 2, 5)
    everywhere(
        call(function),
        (a, (a * 2).reshape(1, 5), a % 2 == 1, numbers.half(), numbers, torch.arange(-2, 3)),
        expect=expect,
    )


# https://github.com/huggingface/candle/pull/900, https://github.com/tinygrad/tinygrad/pull/16162,
# https://github.com/NVIDIA/TensorRT-LLM/issues/10446
def test_activations_are_told_apart(everywhere, call):
    """The two GELUs differ by less than 5e-4; none gives NaN far out."""

    def function(x):
        return (
            F.gelu(x),
            F.gelu(x, approximate="tanh"),
            x * torch.sigmoid(1.702 * x),
            *(F.silu(x), F.mish(x), F.softplus(x), F.softplus(x, 2.0, 5.0), F.logsigmoid(x), F.softsign(x), F.selu(x)),
            *(F.celu(x, 0.5), F.elu(x), F.tanhshrink(x), F.hardswish(x), torch.sigmoid(x), torch.tanh(x), torch.erf(x)),
        )

    def expect(results):
        assert (results[0] - results[1]).abs().max() > 3e-4
        assert all(result.isfinite().all() for result in results)

    x = torch.cat([torch.linspace(-6, 6, 101), torch.tensor([-300.0, -88.0, 88.0, 300.0, -1e-20, 1e-20, 1e4, -1e4])])
    everywhere(call(function), (x,), expect=expect)
