"""The command `ptn`, as a user types it."""

import io
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import ptn_runtime
import pytest
from ptn_runtime import doctor
from ptn_runtime.cli import main
from ptn_runtime.cli.check import grouped
from ptn_runtime.cli.common import format_bytes, format_seconds, parse_options, table
from ptn_runtime.engine import EngineSpec
from ptn_runtime.errors import InputError, Refusal, UnsupportedNode
from ptn_runtime.reference.engine import ReferenceEngine
from ptn_runtime.registry import EngineRow, Registry

GOLDEN = Path(ptn_runtime.__file__).parent / "conformance" / "data" / "golden"
MLP = str(GOLDEN / "mlp_dyn" / "model.ptn")
COUNTER = str(GOLDEN / "counter" / "model.ptn")
LSTM = str(GOLDEN.parent / "models" / "lstm" / "model.ptn")
REFERENCE = ["--engine", "reference"]


@pytest.fixture(autouse=True)
def only_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else is installed must not change these tests."""
    monkeypatch.setenv("PTN_ENGINES_DISABLE", "ggml,vulkan")


@pytest.fixture
def ptn(capsys: pytest.CaptureFixture[str]) -> Any:
    """`ptn("show", path)` gives exit code, standard output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_show(ptn: Any) -> None:
    code, out, err = ptn("show", MLP)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].endswith("mlp_dyn/model.ptn: 6.6 KiB, format 1, 1 method")
    assert lines[2:] == [
        "method forward(input_1) -> tensor",
        "  inputs:",
        "    input_1  float32[1..64, 16]",
        "  outputs:",
        "    output   float32[1..64, 8]",
        "  operators: 4 calls of 3 operators",
        "    aten.linear.default   2",
        "    aten.sigmoid.default  1",
        "    aten.mul.Tensor       1",
        "",
        "constants: 4, 3.2 KiB",
        "  0.weight  float32[32, 16]  2.0 KiB  63.4%",
        "  2.weight  float32[8, 32]   1.0 KiB  31.7%",
        "  0.bias    float32[32]        128 B   4.0%",
        "  2.bias    float32[8]          32 B   1.0%",
    ]


def test_show_state_and_quantisation(ptn: Any) -> None:
    _, out, _ = ptn("show", str(GOLDEN / "whole_llm_q4w" / "model.ptn"))
    assert "state: 4 buffers\n  layers.0.a.k_cache  float32[1, 2, 32, 16]  starts as zeros" in out
    assert "  int4, groups of 32, with zero points  16 constants  42.1 KiB" in out
    assert "more (--all shows them)" in out
    _, everything, _ = ptn("show", "--all", str(GOLDEN / "whole_llm_q4w" / "model.ptn"))
    assert "--all" not in everything
    assert len(everything.splitlines()) > len(out.splitlines())
    _, out, _ = ptn("show", COUNTER)
    assert "  count  float32[1]  starts with data" in out


def test_show_json(ptn: Any) -> None:
    code, out, _ = ptn("show", "--json", MLP)
    assert code == 0
    document = json.loads(out)
    forward = document["methods"]["forward"]
    assert forward["inputs"] == [
        {"name": "input_1", "dtype": "float32", "shape": [[1, 64], 16], "changed_in_place": False}
    ]
    assert forward["operators"]["aten.linear.default"] == 2
    assert document["constant_bytes"] == 4 * (32 * 16 + 32 + 8 * 32 + 8)
    assert document["constants"][0]["name"] == "0.weight"


@pytest.mark.parametrize(
    ("form", "words"), [("text", "aten.linear.default("), ("json", '"aten_linear_default"'), ("dot", "digraph")]
)
def test_show_graph(ptn: Any, form: str, words: str) -> None:
    code, out, _ = ptn("show", "--graph", form, MLP)
    assert code == 0
    assert words in out
    if form == "json":
        json.loads(out)
    if form == "dot":
        assert ptn("show", "--dot", MLP)[1] == out


def test_run_with_files(ptn: Any, tmp_path: Path) -> None:
    with np.load(GOLDEN / "mlp_dyn" / "io.npz") as golden:
        x, expected = golden["in_0"], golden["out_0"]
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "named.npz", input_1=x)
    np.savez(tmp_path / "unnamed.npz", x)
    for source in ("x.npy", "named.npz", "unnamed.npz", "input_1=x.npy"):
        argument = source.replace("x.npy", str(tmp_path / "x.npy")) if "=" in source else str(tmp_path / source)
        target = tmp_path / "out.npz"
        code, out, err = ptn("run", MLP, argument, "-o", str(target))
        assert (code, err) == (0, "")
        assert "forward on reference (cpu), first call" in out
        with np.load(target) as saved:
            np.testing.assert_allclose(saved["output"], expected, atol=1e-5)
    code, _, _ = ptn("run", MLP, str(tmp_path / "x.npy"), "-o", str(tmp_path / "out.npy"))
    assert code == 0
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-5)


def test_bfloat16_in_files(ptn: Any, tmp_path: Path) -> None:
    package = str(GOLDEN / "zoo_bf16_ln" / "model.ptn")
    with np.load(GOLDEN / "zoo_bf16_ln" / "io.npz") as golden:
        x, expected = golden["in_0"], golden["out_0"]
    assert x.dtype == np.float32
    np.save(tmp_path / "wide.npy", x)
    np.save(tmp_path / "bits.npy", x.astype(ml_dtypes.bfloat16))
    for name in ("wide", "bits"):
        code, _, err = ptn("run", package, str(tmp_path / f"{name}.npy"), "-o", str(tmp_path / "out.npy"))
        assert (code, err) == (0, "")
        np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=4e-2)
    np.save(tmp_path / "inexact.npy", x + np.float32(1e-6))
    code, _, err = ptn("run", package, str(tmp_path / "inexact.npy"))
    assert code == 2
    assert "takes bfloat16" in err


def test_engines_that_were_not_taken_are_shown(ptn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptn_runtime import model as model_module

    monkeypatch.setattr(
        model_module.Model,
        "refused",
        (
            Refusal("fast", "cpu", "1 node is not supported: ...", (UnsupportedNode("n", "r"),)),
            Refusal("full", "cuda:0", "out of memory"),
            Refusal("gone", None, "no device."),
        ),
    )
    for command in ("run", "bench"):
        _, out, _ = ptn(command, MLP, "--random")
        assert "  not taken: fast on cpu: 1 node not supported (see 'ptn check')\n" in out
        assert "  not taken: full on cuda:0: out of memory (see 'ptn check')\n" in out
        assert "gone" not in out


def test_run_made_up(ptn: Any) -> None:
    code, out, _ = ptn("run", MLP, "--random", *REFERENCE)
    assert code == 0
    assert "inputs: input_1 float32[16, 16]" in out
    assert "output  float32[16, 8]" in out
    assert ptn("run", MLP, "--random", "--print")[1].count("[") > 15
    _, out, _ = ptn("run", MLP, "--random", "--sizes", "input_1=3x16")
    assert "output  float32[3, 8]" in out
    same = [ptn("run", MLP, "--random", "--seed", "5")[1].splitlines()[-1] for _ in range(2)]
    assert same[0] == same[1]
    assert same[0] != ptn("run", MLP, "--random", "--seed", "6")[1].splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nothing.ptn"], "ptn: error: nothing.ptn: No such file or directory"),
        (["show", str(GOLDEN)], "not a .ptn package: this is a directory"),
        (["show", str(GOLDEN / "mlp_dyn" / "io.npz")], "not a .ptn package: it looks like a numpy archive (.npz)"),
        (["show", MLP, "--method", "x"], "ptn: error: there is no method 'x'"),
        (["run", MLP, "--method", "x", "--random"], "ptn: error: there is no method 'x'"),
        (["run", MLP], "ptn: error: method 'forward' needs inputs: give .npy files or a .npz, or make them up with --"),
        (["run", MLP, "--random", "--engine", "referenze"], "Did you mean 'reference'?"),
        (["run", MLP, "--random", "--device", "cuda"], "ptn: error: no installed engine has a device 'cuda'."),
        (["run", MLP, "--random", *REFERENCE, "--device", "cuda"], "engine 'reference' has no device 'cuda'."),
        (["run", MLP, "--random", *REFERENCE, "--option", "speed=3"], "engine 'reference' has no option 'speed'."),
        (["run", MLP, "--random", "--option", "speed"], "--option takes NAME=VALUE, got 'speed'."),
        (["run", MLP, "--random", "--sizes", "input_1=axb"], "--sizes takes NAME=2x128, got 'input_1=axb'."),
        (["run", MLP, "--random", "--sizes", "x=2"], "--sizes: there is no input 'x'. The inputs: input_1."),
        (
            ["run", MLP, "--random", "--sizes", "input_1=99x16"],
            "size 99 of axis 0 is out of range; allowed [1..64, 16]",
        ),
        (["run", MLP, "--random", "-o", "x.txt"], "--output takes a file ending in .npz or .npy, got 'x.txt'."),
        (["run", MLP, "--random", "-o", "{none}/x.npz"], "/none'; make it, or name another place."),
        (["run", MLP, "--random", "-o", "{folder}.npz"], "folder.npz: it is a folder; name a file."),
        (["run", MLP, "{bad}.npy"], "cannot be read as a .npy file"),
        (["run", MLP, "{bad}.npz"], "bad.npz: "),
        (["run", MLP, "{cut}.npz"], "cut.npz: cannot be read as a .npz file: "),
        (["run", MLP, "{single}.npz"], "cannot be read as a .npz file: it holds a single array"),
        (["run", MLP, "--random", "--sizes", "input_1=-1x16"], "--sizes takes NAME=2x128, got 'input_1=-1x16'."),
        (["run", MLP, "--random", "--high", "0"], "--high must be at least 1, got 0."),
        (["run", MLP, "--random", "--seed", "-1"], "--seed must be at least 0, got -1."),
        (["run", MLP, "{x}.npy", "{x}.npy"], "method 'forward' takes only 1 input: input_1."),
        (["run", MLP, "{wrong}.npz"], "holds y, which are no inputs. The inputs: input_1."),
        (["run", MLP, "{x}.npy"], "input 'input_1' takes float32[1..64, 16], got float64."),
        (["run", MLP, "inptu=x.npy"], "inptu=x.npy: method 'forward' has no input 'inptu'. Its inputs: input_1."),
        (["bench", MLP, "--random", "--repeat", "0"], "--repeat must be at least 1"),
        (["verify", MLP, "--random"], "both engines are 'reference'; name two different ones"),
        (["verify", "nothing.ptn"], "ptn: error: nothing.ptn: No such file or directory"),
    ],
)
def test_errors_are_one_paragraph(ptn: Any, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "bad.npy").write_bytes(b"no array")
    (tmp_path / "bad.npz").write_bytes(b"no array")
    np.save(tmp_path / "x.npy", np.zeros((2, 16)))
    np.savez(tmp_path / "wrong.npz", y=np.zeros(3))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "wrong.npz").read_bytes()[:100])
    (tmp_path / "single.npz").write_bytes((tmp_path / "x.npy").read_bytes())
    (tmp_path / "folder.npz").mkdir()
    filled = [item.replace("{", f"{tmp_path}/").replace("}", "") for item in arguments]
    code, out, err = ptn(*filled)
    assert code == 2
    assert words in err
    assert err.startswith("ptn: error: ")
    assert "Traceback" not in out + err


def test_a_file_for_one_array_is_refused_before_the_run(ptn: Any, tmp_path: Path) -> None:
    target = tmp_path / "out.npy"
    code, out, err = ptn("run", LSTM, "--random", "-o", str(target))
    assert code == 2
    assert "the method gives 2 results; a .npy file holds one, use .npz." in err
    assert not out
    assert not target.exists()


def test_inputs_may_follow_options(ptn: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 16), np.float32))
    code, out, err = ptn("run", MLP, "--method", "forward", *REFERENCE, str(tmp_path / "x.npy"))
    assert (code, err) == (0, "")
    assert "inputs: input_1 float32[2, 16]" in out


def test_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["shwo"], ["run"], ["show", MLP, "--json", "--dot"], ["run", MLP, "--fast"], ["show", MLP, "x"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    assert main([]) == 2
    captured = capsys.readouterr()
    assert "Exit codes: 0" in captured.out
    for command in ("show", "run", "bench", "check", "verify", "engines", "doctor"):
        assert f"\n    {command} " in captured.out
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0


def test_internal_errors(ptn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(doctor, "examine", fail)
    monkeypatch.delenv("PTN_TRACEBACK", raising=False)
    code, _, err = ptn("doctor")
    assert code == 2
    assert err.startswith("ptn: internal error: ZeroDivisionError: oops. This is a bug")
    monkeypatch.setenv("PTN_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        ptn("doctor")


def test_bench(ptn: Any) -> None:
    code, out, _ = ptn("bench", COUNTER, "--engine", "reference", "--engine", "reference@cpu", "--repeat", "3")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "forward, inputs: x float32[1]"
    assert lines[2].split() == ["engine", "device", "median", "p10", "p90", "ratio", "calls"]
    assert lines[3].split()[:2] == ["reference", "cpu"]
    assert lines[3].split()[-2:] == ["1.00", "3"]
    assert lines[4].split()[-1] == "3"


def test_check(ptn: Any) -> None:
    code, out, _ = ptn("check", MLP)
    assert code == 0
    assert "  reference  cpu     runs it\n" in out
    assert out.endswith("\nload() takes reference on cpu.\n")
    assert "disabled by PTN_ENGINES_DISABLE" in out


def test_check_groups_refusals() -> None:
    nodes = [
        UnsupportedNode("node 'a' (aten.x)", "too big.", ("two",), "aten.x", "forward", "a", "m.py:1"),
        UnsupportedNode("node 'b' (aten.y)", "unknown.", (), "aten.y", "forward", "b"),
        UnsupportedNode("node 'c' (aten.x)", "too big.", ("two",), "aten.x", "decode", "c", "m.py:1"),
        UnsupportedNode("node 'd' (aten.long)", "too big.", ("two",), "aten.long", "decode", "d"),
        *[UnsupportedNode("n", "too big.", ("two",), "aten.x", "decode", "e", f"m.py:{i}") for i in range(2, 6)],
    ]
    assert grouped(nodes) == [
        "  too big.",
        "    aten.x     6 nodes  m.py:1, m.py:2, m.py:3, and 2 more",
        "    aten.long   1 node  'd'",
        "    engines that can: two",
        "  unknown.",
        "    aten.y  1 node  'b'",
        "    engines that can: none of the installed ones",
    ]
    assert grouped(nodes[:4], everything=True) == [
        "  too big.",
        "    forward: node 'a' (aten.x)",
        "    decode: node 'c' (aten.x)",
        "    decode: node 'd' (aten.long)",
        "    engines that can: two",
        "  unknown.",
        "    forward: node 'b' (aten.y)",
        "    engines that can: none of the installed ones",
    ]


def test_check_without_an_engine(ptn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTN_ENGINES_DISABLE", "ggml,vulkan,reference")
    code, out, _ = ptn("check", MLP)
    assert code == 1
    assert out.endswith("\nNo engine runs every method of this package.\n")


def test_verify(ptn: Any, tmp_path: Path) -> None:
    code, out, _ = ptn("verify", MLP)
    assert code == 0
    assert out.endswith(": checksums and structure are right\n  1 method, 4 constants, 3.2 KiB\n")
    data = bytearray(Path(MLP).read_bytes())
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as archive:
        start = archive.getinfo("program.safetensors").header_offset
        end = start + archive.getinfo("program.safetensors").file_size
    data[end - 5] ^= 0xFF
    broken = tmp_path / "broken.ptn"
    broken.write_bytes(bytes(data))
    code, out, err = ptn("verify", str(broken))
    assert (code, err) == (1, "")
    assert "broken.ptn is damaged:\n  " in out
    assert "program.safetensors" in out


def test_engines(ptn: Any) -> None:
    code, out, _ = ptn("engines", "--options")
    assert code == 0
    assert out.splitlines()[0].split() == ["engine", "package", "api", "device", "what", "it", "is"]
    assert f"reference  ptn-runtime {ptn_runtime.__version__}" in out
    assert "options of reference:\n  decode_once  keep the values of quantised constants" in out


def test_broken_engines_are_shown_with_the_reason(ptn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptn_runtime import registry as registry_module

    shutil.copytree(_dist_info(), tmp_path / _dist_info().name)
    info = tmp_path / "ptn_engine_bad-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ptn-engine-bad\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ptn.engines]\nbad = a_module_that_is_missing:SPEC\n")
    found = registry_module.Registry([str(tmp_path)])
    monkeypatch.setattr(registry_module, "registry", lambda: found)
    monkeypatch.setattr(doctor, "registry", lambda: found)
    code, out, _ = ptn("engines")
    assert code == 1
    assert "BROKEN, see below" in out
    assert (
        "bad: engine 'bad' (ptn-engine-bad 1.0) could not be loaded: ModuleNotFoundError: No module named "
        "'a_module_that_is_missing'. Reinstall it: pip install --force-reinstall ptn-engine-bad." in out
    )
    code, out, _ = ptn("doctor")
    assert code == 1
    assert "problems:\n  - engine 'bad'" in out
    code, out, _ = ptn("check", MLP)
    assert code == 0
    assert "bad is not available:" in out


@pytest.mark.parametrize("method", ["devices", "unavailable"])
def test_engines_that_fail_when_asked_are_rows_too(
    ptn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from ptn_runtime import registry as registry_module

    class Failing(ReferenceEngine):
        name = "failing"

        def devices(self) -> Any:
            return () if method == "unavailable" else fail()

        def unavailable(self) -> Any:
            return fail()

        def options(self) -> Any:
            return fail()

    def fail() -> Any:
        raise OSError("the driver is upset")

    class Two(Registry):
        def rows(self) -> Any:
            return (EngineRow("reference", "ptn-runtime", "1", "m:S"), EngineRow("failing", "ptn-failing", "1", "m:S"))

        def spec(self, name: str) -> Any:
            return EngineSpec(name, (1, 0), "m:f", "")

        def engine(self, name: str) -> Any:
            return Failing() if name == "failing" else ReferenceEngine()

    two = Two()
    monkeypatch.setattr(registry_module, "registry", lambda: two)
    monkeypatch.setattr(doctor, "registry", lambda: two)
    code, out, _ = ptn("engines", "--options")
    assert code == 1
    assert "numpy on the host's processor" in out
    assert "failing: engine 'failing' failed when it was asked for" in out
    assert "OSError: the driver is upset. This is a fault of the engine." in out
    assert "options of failing: engine 'failing' failed when it was asked for its options" in out
    code, out, _ = ptn("doctor")
    assert code == 1
    assert "problems:\n  - engine 'failing' failed when it was asked for" in out


def _dist_info() -> Path:
    import importlib.metadata

    return Path(str(importlib.metadata.distribution("ptn-runtime")._path))  # type: ignore[attr-defined]


def test_doctor(ptn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = ptn("doctor")
    assert code == 0
    for title in ("python:", "machine:", "packages:", "libraries:", "engines:"):
        assert f"{title}\n" in out
    assert "numpy" in out
    assert "PTN_ENGINES_DISABLE=ggml,vulkan leaves engines out." in out
    monkeypatch.setattr(doctor, "nvidia_gpus", lambda: ["NVIDIA H200"])
    _, out, _ = ptn("doctor")
    assert "an NVIDIA GPU is visible, but no engine offers a cuda device" in out
    monkeypatch.setattr(doctor, "_version", lambda name: {"ptn-format": "0.1.0", "ptn-runtime": "0.2.0"}.get(name))
    code, out, _ = ptn("doctor")
    assert code == 1
    assert "the ptn packages are of different releases: ptn-format 0.1.0, ptn-runtime 0.2.0." in out


def test_as_a_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ptn_runtime", "show", MLP], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith(MLP)
    assert done.stderr == ""
    piped = subprocess.run(
        f"{sys.executable} -m ptn_runtime show --graph json {MLP} | head -c 10",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert piped.stderr == ""


def test_helpers() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 23_800_000, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "22.7 MiB",
        "5120.0 GiB",
    ]
    assert [format_seconds(s) for s in (5e-7, 1.234e-4, 0.01234, 0.5, 2.0, 250)] == [
        "0.5 us",
        "123 us",
        "12.3 ms",
        "500 ms",
        "2 s",
        "250 s",
    ]
    assert parse_options(["a=3", "b=[1, 2]", "c=fast", "d=True", "e=x=y"]) == {
        "a": 3,
        "b": [1, 2],
        "c": "fast",
        "d": True,
        "e": "x=y",
    }
    with pytest.raises(InputError):
        parse_options(["a"])
    assert table([("a", 1), ("bcd", 22)], ["x", "n"], right=[1]) == "  x     n\n  a     1\n  bcd  22"
    assert table([]) == ""
