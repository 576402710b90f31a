"""The progress bar: on terminals, after a while, and nowhere else."""

import io
import time

import torch
from ptn_export import export, to_native
from ptn_export.progress import Progress
from torch import nn


class Terminal(io.StringIO):
    def isatty(self):
        return True


def work(progress):
    with progress as bar:
        bar.stage("capture forward")
        time.sleep(0.15)
        bar.stage("write", 1000, "B")
        bar.advance(400)
        bar.advance(100)
        time.sleep(0.5)


def test_a_bar_on_a_terminal():
    terminal = Terminal()
    work(Progress(True, file=terminal, delay=0.05))
    text = terminal.getvalue()
    assert "ptn-export: capture forward, " in text
    assert "ptn-export: write, " in text
    assert "50%|" in text
    assert "500/1.00k" in text
    assert text.endswith("\r")  # the bar is gone


def test_no_bar_in_pipes_nor_for_quick_work_nor_unasked():
    for shown, file, delay in ((True, io.StringIO(), 0), (True, Terminal(), 60), (False, Terminal(), 0)):
        start = time.monotonic()
        work(Progress(shown, file=file, delay=delay))
        assert file.getvalue() == ""
        assert time.monotonic() - start < 30


def test_bytes_are_counted(tmp_path, monkeypatch):
    stages, done = [], []
    monkeypatch.setattr(Progress, "stage", lambda self, name, total=None, unit="": stages.append((name, total, unit)))
    monkeypatch.setattr(Progress, "advance", lambda self, amount: done.append(amount))
    native = export(nn.Linear(64, 8).eval(), (torch.ones(1, 64),), tmp_path / "model.ptn")
    names = ["capture forward", "decompose forward", "optimise forward", "serialise forward", "write"]
    assert [name for name, *_ in stages] == names
    assert stages[-1] == ("write", 64 * 8 * 4 + 8 * 4, "B")
    assert sum(done) > 64 * 8 * 4 + 8 * 4  # and the header of the weights
    native.save(tmp_path / "again.ptn", progress=True)
    assert stages[-1][0] == "write"


def test_the_library_is_silent(capsys):
    to_native(torch.export.export(nn.ReLU(), (torch.ones(2),)))
    assert capsys.readouterr() == ("", "")
