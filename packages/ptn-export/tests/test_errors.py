"""Everything that cannot be exported, in one report with the user's own lines; warnings about training mode."""

import inspect
import warnings

import pytest
import torch
from ptn_export import ExportError, ExportWarning, to_native
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention


def export(module, *args, **options):
    with warnings.catch_warnings(action="ignore"):
        return torch.export.export(module, args, **options)


def refusal(module, *args, **options):
    with pytest.raises(ExportError) as caught:
        to_native(export(module.eval(), *args, **options))
    return caught.value


class ComplexProduct(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.polar(torch.ones(16, 4), torch.arange(64.0).reshape(16, 4)))

    def forward(self, x):
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * self.frequencies[: x.shape[-2]]
        return torch.view_as_real(z.prod(-1))


def test_complex_numbers_with_line_and_hint():
    error = refusal(ComplexProduct(), torch.randn(1, 2, 5, 8))
    text = str(error)
    line = inspect.getsourcelines(ComplexProduct.forward)[1] + 2
    assert f"test_errors.py:{line}" in text
    assert "the format has no element type complex64, and there is no rule for this operator" in text
    assert "write the computation in real numbers" in text
    assert {problem.subject for problem in error.problems} == {"aten.prod.dim_int"}


def test_all_problems_at_once_grouped_with_counts():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(2).to(torch.float8_e4m3fn))

        def forward(self, x):
            for _ in range(3):
                x = torch.complex(x, x).cumprod(-1).real
            return x * self.scale.float()

    error = refusal(Model(), torch.randn(2))
    assert "cannot export: 4 problems" in str(error)
    assert "* aten.cumprod.default (3 times): the format has no element type complex64" in str(error)
    assert "the format has no element type float8_e4m3fn" in str(error)
    assert "dequantise to float16" in str(error)


def test_problems_of_every_method_are_reported():
    class Complex(nn.Module):
        def forward(self, x):
            return torch.fft.fft(x)

    programs = {name: export(Complex(), torch.randn(4)) for name in ("a", "b")}
    with pytest.raises(ExportError) as caught:
        to_native(programs)
    assert {problem.method for problem in caught.value.problems} == {"a", "b"}


def test_sparse_constants():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("sparse", torch.eye(3).to_sparse_coo())

        def forward(self, x):
            return self.sparse.to_dense() @ x

    text = str(refusal(Model(), torch.ones(3)))
    assert "sparse_coo" in text
    assert ".to_dense()" in text


def test_constants_without_data():
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    text = str(refusal(model, torch.ones(1, 3, device="meta")))
    assert "it has no data (a meta or fake tensor)" in text
    assert "'weight'" in text
    assert "'bias'" in text


def test_parameter_mutation():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2), requires_grad=False)

        def forward(self, x):
            self.weight.add_(1)
            return x * self.weight

    text = str(refusal(Model(), torch.ones(2)))
    assert "the model changes its parameter 'weight'" in text
    assert "register_buffer" in text


def test_other_higher_order_operators_are_refused_by_name():
    class Model(nn.Module):
        def forward(self, q):
            return flex_attention(q, q, q)

    error = refusal(Model(), torch.randn(1, 1, 16, 16))
    assert "* higher_order.flex_attention: packages hold cond, map, scan and while_loop" in str(error)
    assert "rewrite the model without it" in str(error)


def test_side_effects_are_refused():
    class Model(nn.Module):
        def forward(self, x):
            torch.ops.aten._print("seen")
            return x * 2

    error = refusal(Model(), torch.ones(2))
    (problem,) = error.problems
    assert problem.subject == "aten._print.default"
    assert problem.source.startswith("test_errors.py:")
    assert "it prints, logs, or changes something outside of the graph" in problem.reason
    assert "torch.compiler.is_exporting()" in problem.hint


def test_custom_operators_pass_and_those_that_mutate_are_refused():
    @torch.library.custom_op("ptn_export_tests::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double.register_fake(torch.empty_like)

    @torch.library.custom_op("ptn_export_tests::increase", mutates_args={"x"})
    def increase(x: torch.Tensor) -> None:
        x.add_(1)

    class Functional(nn.Module):
        def forward(self, x):
            return double(x) + 1

    class Mutating(nn.Module):
        def forward(self, x):
            y = x * 1
            increase(y)
            return y

    native = to_native(export(Functional(), torch.ones(2)))
    assert "ptn_export_tests.double.default" in native.report.methods[0].operators
    error = refusal(Mutating(), torch.ones(2))
    assert "ptn_export_tests.increase.default" in str(error)
    assert "changes its arguments" in str(error)


def test_training_mode_is_one_warning():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5)).train()
    with pytest.warns(ExportWarning) as caught:
        to_native(export(model, torch.randn(2, 1, 4, 4)))
    (warning,) = caught
    assert "exported in training mode" in str(warning.message)
    assert "aten.dropout.default" in str(warning.message)
    assert "aten.batch_norm.default" in str(warning.message)
    assert "Call `model.eval()` before torch.export.export." in str(warning.message)


def test_random_operators_are_a_warning():
    class Model(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    with pytest.warns(ExportWarning, match=r"draws random numbers.*aten.rand_like.default \(test_errors.py:\d+\)"):
        to_native(export(Model(), torch.ones(3)))


def test_places_in_modules_of_pytorch_are_named():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Dropout()) for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    line = inspect.getsourcelines(Model.forward)[1] + 2
    with pytest.warns(ExportWarning) as caught:
        to_native(export(Model().train(), torch.ones(1, 2)))
    (warning,) = caught
    for i in range(2):
        place = f"aten.dropout.default (test_errors.py:{line}, module 'layers.{i}.1' (Dropout))"
        assert place in str(warning.message)


def test_a_line_that_many_modules_run_is_one_place():
    class Layer(nn.Module):
        def forward(self, x):
            return x.to(torch.float8_e4m3fn).float()

    line = inspect.getsourcelines(Layer.forward)[1] + 1
    text = str(refusal(nn.Sequential(*(Layer() for _ in range(5))), torch.ones(2)))
    (place,) = [part for part in text.splitlines() if part.startswith("    at ")]
    assert place.startswith(f"    at test_errors.py:{line} in 0, 1, 2, 2 more (node '")
    assert place.endswith(" in method 'forward'")


def test_inputs_that_were_one_tensor_are_a_warning():
    class Model(nn.Module):
        def forward(self, x, y, z=None):
            return x + 2 * y

    x = torch.ones(3)
    with pytest.warns(ExportWarning, match=r"inputs x, y were one and the same tensor .* reads only y"):
        to_native(export(Model(), x, x))
    to_native(export(Model(), x, x.clone(), x + 1))


def test_eval_mode_is_silent():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8, 4), nn.RReLU()
    ).eval()
    to_native(export(model, torch.randn(2, 1, 4, 4)))  # a warning would be an error
    to_native(export(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5).eval(), torch.randn(2, 3, 4)))
    to_native(export(nn.LSTM(2, 3, num_layers=2, dropout=0.5).eval(), torch.randn(2, 3, 2)))


def test_norms_without_running_statistics_have_no_training_mode():
    class Standardised(nn.Conv2d):
        """BiT's convolution: each filter has mean 0 and variance 1."""

        def forward(self, x):
            weight = F.batch_norm(self.weight.flatten(1)[None], None, None, training=True)
            return F.conv2d(x, weight.view_as(self.weight), self.bias)

    layers = (Standardised(1, 2, 3), nn.InstanceNorm2d(2), nn.BatchNorm2d(2, track_running_stats=False))
    to_native(export(nn.Sequential(*layers).eval(), torch.randn(2, 1, 6, 6)))  # a warning would be an error
