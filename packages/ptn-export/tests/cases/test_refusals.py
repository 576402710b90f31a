"""What cannot be exported, or should not be: the text names the operator, the user's line and the way out."""

import pytest
import torch
import torch.nn.functional as F
from ptn_export import ExportWarning, to_native
from ptn_export.cli import main
from torch import nn


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3, eps=1e-3)
        self.drop = nn.Dropout(0.5)
        with torch.no_grad():
            self.norm.running_mean.copy_(torch.tensor([1.0, -2.0, 0.5]))
            self.norm.running_var.copy_(torch.tensor([4.0, 0.25, 1e-6]))
            self.norm.weight.copy_(torch.tensor([2.0, -1.0, 0.5]))

    def forward(self, x):
        return self.drop(self.norm(x))


# https://github.com/pytorch/pytorch/issues/151726, https://github.com/pytorch/pytorch/issues/103681,
# https://github.com/pytorch/executorch/issues/6632, https://github.com/apache/tvm/pull/17752
def test_evaluation_mode_uses_running_statistics_and_drops_nothing(everywhere):
    native = everywhere(Normalised().eval(), (torch.randn(2, 3, 4, 4),), rtol=1e-4, atol=1e-4)
    assert not any("dropout" in operator for operator in native.report.methods[0].operators)


@pytest.mark.parametrize(
    ("make", "operators"),
    [
        (lambda: Normalised().train(), ("aten.batch_norm.default", "aten.dropout.default")),
        (lambda: nn.Sequential(nn.Dropout2d(0.5), nn.AlphaDropout(0.5)).train(), ("dropout",)),
        (
            lambda: nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)).train(),
            ("aten.instance_norm.default",),
        ),
        (lambda: Always().eval(), ("aten.dropout.default",)),
    ],
    ids=["batch_norm", "dropouts", "instance_norm", "functional"],
)
def test_training_mode_is_a_warning_with_the_lines(make, operators):
    module = make()
    exported = torch.export.export(module, (torch.randn(2, 3, 4, 4),))
    with pytest.warns(ExportWarning) as caught:
        to_native(exported)
    (warning,) = caught
    text = str(warning.message)
    assert "training mode" in text
    assert "model.eval()" in text
    assert ("test_refusals.py:" in text) == (
        type(module).__module__ == __name__
    )  # PyTorch's layers have no user's line
    for operator in operators:
        assert operator in text


class Always(nn.Module):
    """`F.dropout` trains by default, whatever the module's mode."""

    def forward(self, x):
        return F.dropout(x, 0.5)


MODELS = """
import torch
from torch import nn


class If(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # here
            return x + 1
        return x - 1


class While(nn.Module):
    def forward(self, x):
        while x.max() > 1:  # here
            x = x / 2
        return x


class Item(nn.Module):
    def forward(self, x):
        n = int(x[0])  # here
        return x * 2 if n > 3 else x


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, inputs):
        return self.linear(inputs["x"]).reshape(inputs["x"].shape[0], -1)


batch, time = torch.export.Dim("batch", max=8), torch.export.Dim("time", min=2, max=64)
if_ = lambda: (If(), (torch.ones(3),))
while_ = lambda: (While(), (torch.ones(3),))
item = lambda: (Item(), (torch.ones(3),))
one = lambda: (nn.Linear(4, 2), (torch.ones(1, 4),), ({0: batch},))
nested = lambda: (Nested(), ({"x": torch.ones(1, 4)},), ({"x": {0: batch}},))
lstm = lambda: (nn.LSTM(3, 4, batch_first=True).eval(), (torch.ones(2, 7, 3),), ({1: time},))
gru = lambda: (nn.Sequential(nn.GRU(3, 4)).eval(), (torch.ones(7, 2, 3),), ({0: time},))
"""


@pytest.fixture
def models(importable):
    return importable("case_models", MODELS)


def refusal(name, models, capsys):
    assert main([f"{models}:{name}", "-o", "model.ptn"]) == 1
    return capsys.readouterr().err


# https://github.com/pytorch/pytorch/issues/157355, https://github.com/pytorch/executorch/issues/12732,
# https://github.com/pytorch/executorch/issues/8988
@pytest.mark.parametrize("name", ["If", "While", "Item"])
def test_python_branches_on_values(models, capsys, name):
    text = refusal({"If": "if_", "While": "while_", "Item": "item"}[name], models, capsys)
    start = MODELS.split("\n").index(f"class {name}(nn.Module):")
    line = next(i for i, code in enumerate(MODELS.split("\n"), 1) if i > start and code.endswith("# here"))
    assert f"PyTorch cannot capture {name}" in text
    assert f"case_models.py:{line}" in text or f'case_models.py", line {line}' in text
    assert "torch.cond" in text
    assert "torch.where" in text


# https://github.com/pytorch/pytorch/issues/151582, https://github.com/pytorch/pytorch/issues/133653,
# https://github.com/pytorch/pytorch/pull/170264
@pytest.mark.parametrize("name", ["one", "nested"])
def test_an_example_size_of_one(models, capsys, name):
    text = refusal(name, models, capsys)
    assert "batch" in text
    assert "give every dynamic axis an example size of 2 or more; PyTorch treats a size of 1 as fixed" in text


# https://github.com/pytorch/pytorch/issues/191855, https://github.com/pytorch/pytorch/issues/126339
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_time_axis_that_varies(models, capsys, name):
    text = refusal(name, models, capsys)
    assert "time" in text
    assert "leave the time axis of recurrent layers static" in text
    assert "example size of 2" not in text
