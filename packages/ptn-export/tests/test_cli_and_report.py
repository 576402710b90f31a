"""The command and the report, as a user sees them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ptn_export import __version__, to_native
from ptn_export.cli import main
from ptn_format.package import open_package
from torch import nn

MODULE = """
import ptn_export
import torch
from torch import nn


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.linear(x)

    def total(self, x):
        x += self.calls + 1
        return self.calls * 2, {"x": x + 1, "n": 3}


batch = torch.export.Dim("batch", min=1, max=8)


def with_shapes():
    return Shift().eval(), (torch.ones(2, 3),), ({0: batch},)


def pair():
    return Shift().eval(), (torch.ones(2, 3),)


def exported():
    return torch.export.export(*pair())


def methods():
    return {"a": exported()}


def float8_model():
    class Float8(nn.Module):
        def forward(self, x):
            return x.to(torch.float8_e4m3fn)

    return Float8(), (torch.ones(4),)


def as_dict():
    model = Shift().eval()
    total = ptn_export.Method((torch.ones(1),), function="total")
    return {"model": model, "args": [torch.ones(2, 3)], "dynamic_shapes": ({0: batch},), "methods": {"total": total}}


def by_name():
    return {"model": Shift().eval(), "kwargs": {"x": torch.ones(2, 3)}}


def wrong_key():
    return {"model": Shift().eval(), "inputs": ()}


def not_a_method():
    return {"model": Shift().eval(), "methods": {"sum": (torch.ones(1),)}}


def random():
    class Random(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    return Random(), (torch.ones(4),)


def wide():
    return nn.Linear(64, 4).eval(), (torch.ones(2, 64),)


def size_one():
    return Shift().eval(), (torch.ones(1, 3),), ({0: batch},)


def recurrent():
    time = torch.export.Dim("time", min=2, max=9)
    return nn.LSTM(3, 2, batch_first=True).eval(), (torch.ones(2, 5, 3),), ({1: time}, None)[:1]


def branch():
    class Branch(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1

    return Branch(), (torch.ones(4),)


def training():
    return nn.Dropout(0.5).train(), (torch.ones(4),)


model = Shift()
number = 3
"""


@pytest.fixture
def module(importable):
    return importable("cli_models", MODULE)


def test_a_function_that_returns_model_inputs_and_shapes(module, capsys):
    assert main([f"{module}:with_shapes", "-o", "model.ptn"]) == 0
    text = capsys.readouterr().out
    assert "input x: float32[1..8, 3]" in text
    assert "state calls" in text
    assert "1  aten.linear.default" in text
    assert "wrote model.ptn" in text
    assert open_package("model.ptn").method_names == ("forward",)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pair", ["forward"]),
        ("exported", ["forward"]),
        ("methods", ["a"]),
        ("as_dict", ["forward", "total"]),
        ("by_name", ["forward"]),
    ],
)
def test_other_sources_and_their_check(module, capsys, name, expected):
    assert main([f"{module}:{name}", "-q", "-o", "folder/model.ptn"]) == 0
    assert capsys.readouterr() == ("", "")
    assert list(open_package("folder/model.ptn").method_names) == expected
    assert main([f"{module}:{name}", "--check", "-o", "folder/model.ptn"]) == 0
    lines = capsys.readouterr().out.splitlines()
    methods = [line for line in lines if "agrees on the reference engine" in line]
    assert methods == [f"method {method}: agrees on the reference engine" for method in expected]
    assert any(line.startswith("  result float32[2, 2]: largest difference ") for line in lines)
    if name == "as_dict":  # numbers and changed inputs are compared, too
        assert "  result[0] float32[1]: largest difference 0, allowed 0" in lines
        assert "  result[1]['n'] int64[]: largest difference 0, allowed 0" in lines
        assert "  input[0][0] float32[1]: largest difference 0, allowed 0.004" in lines


def test_a_check_that_fails(module, capsys):
    assert main([f"{module}:random", "--check", "-q", "-o", "model.ptn"]) == 1
    text = capsys.readouterr()
    assert text.out.startswith(
        "method forward: DIFFERS on the reference engine\n  result float32[4]: largest difference "
    )
    assert "DIFFERS at [" in text.out
    assert "the package does not agree with PyTorch" in text.err


def test_a_check_without_the_runtime(module, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ptn_runtime", None)
    with pytest.raises(ImportError):
        import ptn_runtime  # noqa: F401
    assert main([f"{module}:pair", "-o", "model.ptn"]) == 0
    assert "engines: ptn-runtime is not installed here" in capsys.readouterr().out
    assert main([f"{module}:pair", "-q", "--check", "-o", "model.ptn"]) == 2
    assert "pip install 'ptn-export[check]'" in capsys.readouterr().err


def test_quantised(module, capsys):
    pytest.importorskip("torchao")
    assert main([f"{module}:wide", "--quantize", "int4", "--check", "-o", "model.ptn"]) == 0
    text = capsys.readouterr().out
    assert "4-bit affine, groups of 32" in text
    assert "method forward: agrees" in text
    assert main([f"{module}:exported", "--quantize", "int4", "-o", "model.ptn"]) == 2
    assert "--quantize changes the model before it is captured" in capsys.readouterr().err
    assert main([f"{module}:wide", "--quantize", "int1", "-o", "model.ptn"]) == 2
    assert "there is no scheme 'int1'" in capsys.readouterr().err


def test_passes_and_source_lines_can_be_switched_off(module, capsys):
    options = ["--disable-pass", "views", "--disable-pass", "cse", "--no-source-lines", "-q", "-o", "model.ptn"]
    assert main([f"{module}:pair", *options]) == 0
    nodes = open_package("model.ptn").method("forward").graph.nodes
    assert not any("ptn.source" in node.metadata for node in nodes)
    with pytest.raises(SystemExit):
        main([f"{module}:pair", "--disable-pass", "no-such-pass", "-o", "model.ptn"])
    assert "no-such-pass" in capsys.readouterr().err


def test_a_saved_exported_program(tmp_path):
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(nn.Linear(2, 2).eval(), (torch.ones(1, 2),)), path)
    assert main([str(path), "-q", "--check", "-o", str(tmp_path / "model.ptn")]) == 0
    assert open_package(tmp_path / "model.ptn").constant_keys == ("bias", "weight")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("cli_models:model", "example inputs are needed too"),
        ("cli_models:number", "gives a int; expected an ExportedProgram"),
        ("cli_models:nothing", "'cli_models' has no 'nothing'"),
        ("no_such_module_:f", "cannot import 'no_such_module_'"),
        ("cli_models", "expected package.module:name or a .pt2 file"),
        ("missing.pt2", "there is no file 'missing.pt2'"),
        ("damaged.pt2", "'damaged.pt2' is no file of torch.export.save that this PyTorch reads"),
        ("cli_models:wrong_key", "gives a dict with 'inputs'; it may have 'model', 'args', 'kwargs'"),
        ("cli_models:not_a_method", "method 'sum': expected a ptn_export.Method, got tuple"),
    ],
)
def test_wrong_sources(module, capsys, source, text):
    Path("damaged.pt2").write_bytes(b"no zip")
    assert main([source, "-o", "model.ptn"]) == 2
    assert text in capsys.readouterr().err


def test_a_model_that_cannot_be_exported(module, capsys, tmp_path):
    assert main([f"{module}:float8_model", "-o", "model.ptn"]) == 1
    assert "the format has no element type float8_e4m3fn" in capsys.readouterr().err
    assert not (tmp_path / "model.ptn").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("size_one", "give every dynamic axis an example size of 2 or more"),
        ("recurrent", "leave the time axis of recurrent layers static"),
        ("branch", "torch.cond"),
    ],
)
def test_a_model_that_pytorch_cannot_capture(module, capsys, name, text):
    assert main([f"{module}:{name}", "-o", "model.ptn"]) == 1
    error = capsys.readouterr().err
    assert "ptn-export: cannot export: 1 problem" in error  # PyTorch may print before
    assert "* torch.export: PyTorch cannot capture " in error
    assert text in error


def test_warnings_are_shown(module, capsys):
    assert main([f"{module}:training", "-o", "model.ptn"]) == 0
    assert "warning: method 'forward': the model was exported in training mode" in capsys.readouterr().err


def test_the_installed_command():
    done = subprocess.run(
        [sys.executable, "-c", "from ptn_export.cli import main; raise SystemExit(main())", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"ptn-export {__version__} (torch ")


def test_report_text():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(256, 2, bias=False)
            self.register_buffer("total", torch.ones(2))

        def forward(self, x, y):
            y.add_(1)
            self.total += self.linear(x).sum(0)
            return self.total * 2

    batch = torch.export.Dim("batch", min=1)
    exported = torch.export.export(
        Model(), (torch.ones(3, 256), torch.ones(2, dtype=torch.int32)), dynamic_shapes=({0: batch}, None)
    )
    native = to_native(exported)
    assert str(native.report) == (
        "method forward\n"
        "  input x: float32[1.., 256]\n"
        "  input y: int32[2]  (changed by the call)\n"
        "  state total\n"
        "  5 operations, 5 different operators\n"
        "    1  aten.add.Scalar\n"
        "    1  aten.add.Tensor\n"
        "    1  aten.linear.default\n"
        "    1  aten.mul.Scalar\n"
        "    1  aten.sum.dim_IntList\n"
        "2 constants, 2.0 KiB\n"
        "     2.0 KiB  float32[2, 256]  linear.weight\n"
        "         8 B  float32[2]  total"
    )
    assert native.report.methods[0].inputs[0].dynamic_axes == (0,)
