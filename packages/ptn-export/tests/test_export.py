"""`ptn_export.export`: one call from a module to a file."""

import copy
import inspect
import io

import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import ExportError, ExportWarning, Method, export
from ptn_format.package import open_package
from ptn_runtime.cli import main as ptn_main
from torch import nn

Dim = torch.export.Dim


class Chat(nn.Module):
    """`forward` writes to a cache, `total` reads it, `encoder` is a part of its own."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)
        self.register_buffer("cache", torch.zeros(4))

    def forward(self, x):
        self.cache += self.head(self.encoder(x)).sum(0)
        return self.cache * 2

    def total(self, scale, *, shift=None):
        result = self.cache * scale + self.head.bias
        return result if shift is None else result + shift


@pytest.fixture
def chat():
    torch.manual_seed(0)
    return Chat().eval()


def test_one_call(chat, tmp_path):
    path = tmp_path / "folder" / "model.ptn"
    x = torch.randn(3, 32)
    native = export(chat, (x,), path, dynamic_shapes=({0: Dim("batch", min=1, max=8)},))
    assert str(native.report).startswith("method forward\n  input x: float32[1..8, 32]\n")
    assert chat.cache.count_nonzero() == 0
    with ptn_runtime.load(path, engine="reference") as model, torch.no_grad():
        for batch in (1, 8):
            y = torch.randn(batch, 32)
            np.testing.assert_allclose(model(y.numpy()), chat(y).numpy(), rtol=1e-4, atol=1e-5)


def test_arguments_by_name_and_no_file():
    class Model(nn.Module):
        def forward(self, x, *, y):
            return x - y

    native = export(Model(), (torch.ones(2),), None, kwargs={"y": torch.ones(2)})
    assert [line.name for line in native.report.methods[0].inputs] == ["x", "y"]
    file = io.BytesIO()
    export(Model(), (), file, kwargs={"y": torch.ones(2), "x": torch.ones(2)})
    assert open_package(file.getvalue()).method_names == ("forward",)


@pytest.mark.parametrize("function", ["total", "bound"])
def test_methods_share_weights_and_state(chat, function):
    length = Dim("length", min=1, max=8)
    file = io.BytesIO()
    methods = {
        "total": Method(
            (torch.ones(4),), {"shift": torch.ones(4)}, function=None if function == "total" else chat.total
        ),
        "encode": Method((torch.ones(2, 32),), dynamic_shapes=({0: length},), function="encoder"),
        "again": Method((torch.ones(5, 32),), function="forward"),
    }
    native = export(chat, (torch.ones(2, 32),), file, dynamic_shapes=({0: length},), methods=methods)
    assert native.methods == ("forward", "total", "encode", "again")
    assert set(native.constants) == {
        "cache", "encoder.0.weight", "encoder.0.bias", "head.weight", "head.bias"
    }  # fmt: skip
    x, ones = torch.randn(3, 32), torch.ones(4)
    with ptn_runtime.load(file.getvalue(), engine="reference") as model, torch.no_grad():
        for _ in range(2):
            np.testing.assert_allclose(model(x.numpy()), chat(x), rtol=1e-4, atol=1e-5)
        total = model.run("total", ones.numpy(), shift=ones.numpy())
        np.testing.assert_allclose(total, chat.total(ones, shift=ones), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(model.run("encode", x.numpy()), chat.encoder(x), rtol=1e-4, atol=1e-5)


def test_hooks_run_as_they_do_in_pytorch(chat):
    chat.register_forward_hook(lambda module, args, result: result + 100)
    x = torch.ones(2, 32)
    native = export(
        chat, (x,), None, methods={"total": Method((torch.ones(4),)), "encode": Method((x,), function=chat.encoder)}
    )
    counts = [method.operators.get("aten.add.Scalar", 0) for method in native.report.methods]
    assert counts == [1, 0, 0]


def test_quantised_weights_and_an_unchanged_module(chat, tmp_path):
    pytest.importorskip("torchao")
    before = copy.deepcopy(chat.state_dict())
    x = torch.randn(3, 32)
    with torch.no_grad():
        expected = copy.deepcopy(chat)(x)
    native = export(chat, (x,), tmp_path / "model.ptn", quantize="int8", methods={"total": Method((torch.ones(4),))})
    assert "8-bit affine" in str(native.report)
    assert {key: value.dtype for key, value in chat.state_dict().items()} == {k: v.dtype for k, v in before.items()}
    assert all(torch.equal(chat.state_dict()[key], value) for key, value in before.items())
    with ptn_runtime.load(tmp_path / "model.ptn", engine="reference") as model:
        np.testing.assert_allclose(model(x.numpy()), expected, rtol=0.05, atol=0.1)
    with pytest.raises(ValueError, match="there is no scheme 'no-such'"):
        export(chat, (x,), None, quantize="no-such")


def test_wrong_arguments(chat):
    x = torch.ones(2, 32)
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got function"):
        export(lambda x: x, (x,), None)
    with pytest.raises(TypeError, match=r"args is a tuple .* such as `\(x,\)`, got Tensor"):
        export(chat, x, None)
    with pytest.raises(ValueError, match="there is nothing to export"):
        export(chat, None, None)
    with pytest.raises(TypeError, match="kwargs and dynamic_shapes belong to forward"):
        export(chat, None, None, kwargs={}, methods={"total": Method((x,))})
    with pytest.raises(ValueError, match=r"Chat has no method 'decode'. Say what to call"):
        export(chat, None, None, methods={"decode": Method((x,))})
    with pytest.raises(ValueError, match="is no method of the Chat or of a module in it"):
        export(chat, None, None, methods={"other": Method((x,), function=nn.Linear(1, 1).forward)})
    with pytest.raises(ValueError, match="'forward' is given twice"):
        export(chat, (x,), None, methods={"forward": Method((x,))})
    with pytest.raises(TypeError, match=r"method 'total': expected a ptn_export\.Method, got tuple"):
        export(chat, None, None, methods={"total": (x,)})
    with pytest.raises(ValueError, match="there is no pass 'ropes'"):
        export(chat, (x,), None, disable_passes=("ropes",))


def test_every_method_that_cannot_be_captured_is_named(chat):
    class Model(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

        def sizes(self, x):
            return torch.zeros(int(x[0]))

        def fine(self, x):
            return x

    x = torch.ones(2)
    with pytest.raises(ExportError) as caught:
        export(Model(), (x,), None, methods={"sizes": Method((x,)), "fine": Method((x,))})
    assert [problem.method for problem in caught.value.problems] == ["forward", "sizes"]


def test_training_mode_and_state_in_attributes_are_one_warning():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            self.last = x * 2
            return self.drop(self.last)

    model = Model().train()
    with pytest.warns(ExportWarning) as caught:
        export(model, (torch.ones(3),), None)
    (warning,) = caught
    text = str(warning.message)
    assert warning.filename == __file__
    assert "the model assigns self.last while it runs" in text
    assert "register_buffer" in text
    assert "exported in training mode" in text
    assert "module 'drop' (Dropout)" in text
    assert not hasattr(model, "last")
    assert model.training


def axes(native):
    return [(line.input, line.axis, line.asked, line.sizes) for line in native.report.methods[0].axes]


def test_axes_that_stayed_dynamic_and_those_that_did_not():
    class Model(nn.Module):
        def forward(self, x, parts, *, y):
            return x.view(4, 3) + 1, parts["a"] * 2, parts["b"] * 2, y + 1

    auto = Dim.AUTO
    ones = torch.ones
    args = (ones(4, 3), {"a": ones(1, 2), "b": ones(5)})
    shapes = {
        "x": {0: auto},
        "parts": {"b": {0: Dim("n", min=1, max=9)}, "a": (auto, None)},
        "y": {0: Dim.DYNAMIC(min=1)},
    }
    native = export(Model(), args, None, kwargs={"y": ones(6)}, dynamic_shapes=shapes)
    assert axes(native) == [
        ("x", 0, "AUTO", "4"),
        ("parts.a", 0, "AUTO", "1"),
        ("parts.b", 0, "n", "1..9"),
        ("y", 0, "DYNAMIC", "2.."),
    ]
    text = str(native.report)
    assert "axis 0 of x, AUTO: NOT dynamic, 4 (the model's code works for size 4 only" in text
    assert "axis 0 of parts.a, AUTO: NOT dynamic, 1 (PyTorch takes an example size of 1 for a fixed one" in text
    assert "axis 0 of parts.b, n: dynamic, 1..9\n" in text
    assert "axis 0 of y, DYNAMIC: dynamic, 2.. (sizes from 1 on were asked for: use `Dim('y', min=1)`)" in text


def test_a_package_without_source_lines(chat):
    with_lines, without = (export(chat, (torch.ones(2, 32),), None, source_lines=lines) for lines in (True, False))
    sources = [node.metadata.get("ptn.source") for node in with_lines.program.methods[0].graph.nodes if node.target]
    assert [source.partition(" in ")[2] for source in sources if "head" in source] == ["head"]
    assert all(source.startswith("test_export.py:") for source in sources)
    assert not any("ptn.source" in node.metadata for node in without.program.methods[0].graph.nodes)


def test_errors_at_run_time_and_ptn_show_quote_the_lines(tmp_path, capsys):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([nn.Embedding(4, 2)])

        def forward(self, ids):
            return self.parts[0](ids)

    path = tmp_path / "model.ptn"
    export(Model().eval(), (torch.tensor([1, 2]),), path)
    place = f"test_export.py:{inspect.getsourcelines(Model.forward)[1] + 1} in parts.0"
    with ptn_runtime.load(path, engine="reference") as model, pytest.raises(ptn_runtime.IndexOutOfRangeError) as caught:
        model(np.array([1, 9]))
    assert f"from {place}" in str(caught.value)
    assert ptn_main(["show", str(path), "--graph", "text"]) == 0
    assert f"# {place}" in capsys.readouterr().out


def test_what_was_folded_from_what():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    native = export(model, (torch.randn(1, 1, 4, 4),), None)
    sources = {line.key.partition(".folded")[0]: line.folded_from for line in native.report.constants}
    statistics = ("1.weight", "1.bias", "1.running_mean", "1.running_var")
    assert sources == {"0.weight": ("0.weight", *statistics), "0.bias": ("0.bias", *statistics)}
    assert "(folded from 0.weight, 1.weight, 1.bias, 1.running_mean, 1.running_var)" in str(native.report)


def test_engines_are_asked_without_a_file(chat):
    answers = export(chat, (torch.ones(2, 32),), None).engines()
    assert [str(answer) for answer in answers if answer.engine == "reference"] == ["reference on cpu: runs it"]

    class Unknown(nn.Module):
        def forward(self, x):
            return torch.ops.ptn_export_tests.unknown(x)

    torch.library.define("ptn_export_tests::unknown", "(Tensor x) -> Tensor")
    torch.library.impl("ptn_export_tests::unknown", "Meta", torch.empty_like)
    (answer,) = export(Unknown(), (torch.ones(2),), None).engines()
    assert not answer.runs
    assert "ptn_export_tests.unknown.default has no shape rule" in answer.reason
    assert "'unknown' from test_export.py:" in answer.reason


class Rows(nn.Module):
    def forward(self, x, count):
        return x.reshape(count, -1).sum(0)


def test_integers_that_vary(tmp_path):
    path = tmp_path / "rows.ptn"
    program = export(Rows(), (torch.arange(24.0), 4), path, dynamic_shapes=(None, torch.export.Dim.DYNAMIC))
    assert "count" in str(program.report)
    with ptn_runtime.load(path) as model:
        x = np.arange(24, dtype=np.float32)
        for count in (4, 6, 24):
            np.testing.assert_array_equal(model(x, count), x.reshape(count, -1).sum(0))
