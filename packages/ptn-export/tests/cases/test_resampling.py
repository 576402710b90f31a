"""Windows and positions: pooled sizes and divisors, resizing to few pixels, points far outside an image."""

import pytest
import torch
import torch.nn.functional as F


# https://github.com/pytorch/pytorch/issues/183528
def test_windows_over_the_edge(everywhere, call):
    """A window divides by the part of it that lies inside the padded area, or inside the image."""

    def function(x, wide):
        options = {"stride": 2, "padding": 1, "ceil_mode": True}
        pooled = [
            F.avg_pool2d(x, 3, **options),
            F.avg_pool2d(x, 3, count_include_pad=False, **options),
            F.avg_pool2d(x, 3, divisor_override=5, **options),
        ]
        for kernel, stride, padding in ((3, 2, 1), (2, 3, 1), ((3, 1), (1, 2), (1, 0)), (4, 3, 2), (2, 2, 0)):
            for ceil_mode in (False, True):
                options = {"stride": stride, "padding": padding, "ceil_mode": ceil_mode}
                pooled.append(F.avg_pool2d(wide, kernel, **options))
                pooled.append(F.avg_pool2d(wide, kernel, count_include_pad=False, **options))
                pooled += F.max_pool2d(wide, kernel, return_indices=True, **options)
        line, block = wide[:, 0], wide[None, :, :, :4]
        pooled += [F.avg_pool1d(line, 3, 2, 1, ceil_mode=True), F.max_pool1d(line, 3, 2, 1, ceil_mode=True)]
        pooled += [F.avg_pool3d(block, 2, 2, 1, ceil_mode=True, count_include_pad=c) for c in (False, True)]
        pooled += [F.max_pool3d(block, 2, 2, 1, ceil_mode=True), F.max_pool2d(wide, 3, 1, dilation=2)]
        pooled += [F.adaptive_avg_pool2d(wide, size) for size in ((3, 2), (1, 1), (5, 7), (11, None))]
        pooled += [F.adaptive_max_pool2d(wide, (3, 2)), F.lp_pool2d(wide.abs(), 2, 3, 2)]
        return pooled

    def expect(results):
        assert results[0].shape == (1, 1, 3, 3)
        assert results[0][0, 0, 0, 2].item() == pytest.approx(2.0)
        assert results[0][0, 0, 2, 2].item() == pytest.approx(4.0)

    x = torch.arange(1.0, 17.0).reshape(1, 1, 4, 4)
    wide = torch.randn(2, 2, 7, 8, generator=torch.Generator().manual_seed(1))
    everywhere(call(function), (x, wide), expect=expect, rtol=1e-5, atol=1e-6)


# https://github.com/pytorch/pytorch/issues/183523, https://github.com/NVIDIA/TensorRT/issues/273
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_smooth_resizing(everywhere, call, mode):
    """To one pixel, to one row, up, down and by factors; pixel centres lie at halves unless corners are aligned."""

    def function(x):
        sizes = [(1, 1), (1, 7), (7, 3), (10, 10), (23, 19)]
        resized = [
            F.interpolate(x, size, mode=mode, align_corners=corners) for size in sizes for corners in (False, True)
        ]
        resized += [F.interpolate(x, scale_factor=f, mode=mode) for f in (1.7, 0.3, (2, 0.5))]
        resized += [F.interpolate(x, scale_factor=1.7, mode=mode, recompute_scale_factor=True)]
        resized += [F.interpolate(x, size, mode=mode, antialias=True) for size in ((1, 1), (4, 3), (13, 5))]
        return (*resized, F.interpolate(x[:, :, 4:5, 4:5], (3, 2), mode=mode))

    x = torch.arange(100.0).reshape(1, 1, 10, 10) ** 1.5

    def expect(results):
        if mode == "bilinear":
            torch.testing.assert_close(results[0].reshape(()), x[0, 0, 4:6, 4:6].mean())
        torch.testing.assert_close(results[1].reshape(()), x[0, 0, 0, 0], atol=1e-3, rtol=0)
        torch.testing.assert_close(results[-1], x[:, :, 4:5, 4:5].expand(1, 1, 3, 2))

    # Eager mode itself is off by 5e-4 here: bicubic weights of either sign meet values up to 985.
    native = everywhere(call(function), (x,), expect=expect, rtol=1e-5, atol=1e-3)
    assert set(native.report.methods[0].operators) == {
        "aten.slice_copy.Tensor",
        f"aten.upsample_{mode}2d.vec",
        f"aten._upsample_{mode}2d_aa.vec",
    }


# https://github.com/pytorch/pytorch/issues/183523
def test_resizing_of_any_rank(everywhere, call):
    def function(x):
        line, block = x[:, :, 0], x[:, :, None].expand(-1, -1, 3, -1, -1)
        resized = []
        for image, rank in ((line, 1), (x, 2), (block, 3)):
            for size in (1, 3, 7, 12):
                resized += [F.interpolate(image, (size,) * rank, mode=mode) for mode in ("nearest", "nearest-exact")]
            for factor in (1.7, 0.6, 3):
                resized += [F.interpolate(image, scale_factor=factor, mode=m) for m in ("nearest", "nearest-exact")]
        for mode, image, size in (("linear", line, 5), ("trilinear", block, (2, 5, 3))):
            resized += [F.interpolate(image, size, mode=mode, align_corners=c) for c in (False, True)]
            resized += [F.interpolate(image, scale_factor=1.7, mode=mode)]
        return resized

    everywhere(call(function), (torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(2)),))


# https://github.com/pytorch/pytorch/issues/183523
def test_resizing_with_dynamic_sizes(everywhere, call):
    def function(x):
        height, width = x.shape[2:]
        sizes = (2 * height, width), (height // 2 + 1, 3)
        return (
            [F.interpolate(x, size, mode="bilinear") for size in sizes],
            [F.interpolate(x, size, mode="bicubic") for size in sizes],
            [
                F.interpolate(x, scale_factor=1.5, mode=mode)
                for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
            ],
        )

    height, width = torch.export.Dim("height", min=2, max=32), torch.export.Dim("width", min=1, max=32)
    image = lambda *size: torch.randn(1, 2, *size, generator=torch.Generator().manual_seed(3))  # noqa: E731
    everywhere(
        call(function),
        (image(6, 5),),
        (image(3, 8),),
        (image(2, 1),),
        dynamic_shapes=(({2: height, 3: width},),),
        rtol=1e-4,
        atol=1e-4,
    )


# https://github.com/onnx/onnx/issues/4033, https://github.com/microsoft/onnxruntime/pull/10628
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_points_on_and_far_past_the_border(everywhere, call, mode):
    def function(x, grid):
        return [
            F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=corners)
            for padding in ("zeros", "border", "reflection")
            for corners in (False, True)
        ]

    axis = torch.tensor([-3.4, -1.0, -0.98, -0.31, 0.0, 0.47, 1.0, 1.02, 3.7])
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)[None]
    x = torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(4))
    everywhere(call(function), (x, grid), rtol=1e-4, atol=1e-5)


# https://github.com/onnx/onnx/issues/4033
def test_points_in_a_volume_and_an_affine_grid(everywhere, call):
    def function(x, theta):
        flat = F.affine_grid(theta[:, :2, :3], [1, 2, 4, 3], align_corners=False)
        deep = F.affine_grid(theta, [1, 2, 3, 4, 3], align_corners=True)
        sampled = [F.grid_sample(x[:, :, 0], flat, align_corners=False)]
        for mode in ("bilinear", "nearest"):
            sampled += [
                F.grid_sample(x, deep, mode=mode, padding_mode=padding, align_corners=True)
                for padding in ("zeros", "border", "reflection")
            ]
        return flat, deep, sampled

    theta = torch.tensor([[[0.9, 0.2, 0.1, 0.3], [-0.3, 1.1, 0.0, -0.2], [0.1, 0.1, 1.2, 0.4]]])
    x = torch.randn(1, 2, 3, 5, 4, generator=torch.Generator().manual_seed(5))
    everywhere(call(function), (x, theta), rtol=1e-4, atol=1e-5)
