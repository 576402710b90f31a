"""Examines an installation: what `ptn doctor` shows. Nothing here raises: what cannot be found out is left out."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ptn_runtime.errors import EngineError
from ptn_runtime.registry import DISABLE_VARIABLE, registry
from ptn_runtime.survey import asked, devices_of

__all__ = ["Report", "examine"]

_FEATURES = tuple(
    """
    sse4_2 avx avx2 fma f16c avx_vnni avx512f avx512bw avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16
    asimd asimddp asimdhp i8mm bf16 sve sve2 sme
    """.split()  # noqa: SIM905  a table of words reads better so
)
_DEPENDENCIES = ("numpy", "flatbuffers", "ml_dtypes", "libggml-python", "torch", "executorch")
_OURS = ("ptn-format", "ptn-runtime", "ptn-export", "ptn-engine-ggml", "ptn-engine-vulkan", "ptn-ggml")

Rows = list[tuple[str, str]]


@dataclass(slots=True)
class Report:
    """What was found.

    Attributes:
        sections: titles with rows of name and value.
        problems: what is broken, and what to do.
        hints: what could be better, and how.
    """

    sections: dict[str, Rows] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)


def examine() -> Report:
    """Looks at Python, the machine, packages, libraries and engines."""
    report = Report()
    report.sections["python"] = [
        ("version", f"{platform.python_implementation()} {platform.python_version()}"),
        ("executable", sys.executable or "?"),
        ("environment", sys.prefix),
    ]
    report.sections["machine"] = _machine()
    report.sections["packages"] = _packages(report)
    report.sections["libraries"] = _libraries()
    report.sections["engines"] = _engines(report)
    return report


def _machine() -> Rows:
    rows = [("platform", platform.platform()), ("processor", _cpu_name())]
    features = _cpu_features()
    if features:
        rows.append(("features", " ".join(features)))
    rows.append(("usable cores", _cores()))
    memory = _memory()
    if memory:
        rows.append(("memory", memory))
    return rows


def _cpuinfo() -> dict[str, str]:
    """The first processor's entries, on Linux."""
    found: dict[str, str] = {}
    for line in _read("/proc/cpuinfo").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def _cpu_name() -> str:
    name = _cpuinfo().get("model name") or platform.processor() or "?"
    return f"{name} ({platform.machine()})"


def _cpu_features() -> list[str]:
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return [name for name in _FEATURES if name in flags]


def _cores() -> str:
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"{affinity} of {os.cpu_count()}"
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]):
        text += f", container limit {int(quota[0]) / int(quota[1]):g}"
    return text


def _memory() -> str | None:
    from ptn_runtime.cli.common import format_bytes

    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            text = format_bytes(int(line.split()[1]) * 1024)
            limit = _read("/sys/fs/cgroup/memory.max").strip()
            return f"{text}, container limit {format_bytes(int(limit))}" if limit.isdigit() else text
    return None


def _packages(report: Report) -> Rows:
    rows = []
    ours: dict[str, str] = {}
    for name in (*_OURS, *_DEPENDENCIES):
        version = _version(name)
        if version is not None:
            rows.append((name, version))
            if name in _OURS[:-1]:
                ours[name] = version
    releases = {".".join(version.split(".")[:2]) for version in ours.values()}
    if len(releases) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in ours.items())
        report.problems.append(
            f"the ptn packages are of different releases: {listed}. "
            f"Upgrade them together: pip install --upgrade {' '.join(ours)}"
        )
    return rows


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    except Exception as error:  # damaged metadata raises nearly anything
        return f"damaged metadata ({type(error).__name__})"


def _libraries() -> Rows:
    rows: Rows = []
    for distribution in ("ptn-ggml", "libggml-python"):
        folder = _ggml_folder(distribution)
        if folder is not None:
            rows.append((f"ggml of {distribution}", folder))
    loaded = sorted({line.split()[-1] for line in _read("/proc/self/maps").splitlines() if "libggml" in line})
    rows += [("loaded here", path) for path in loaded if path.startswith("/")]
    drivers = [
        path.name
        for folder in ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
        for path in sorted(Path(folder).glob("*.json"))
    ]
    if drivers:
        rows.append(("vulkan drivers", ", ".join(drivers)))
    gpus = nvidia_gpus()
    if gpus:
        rows.append(("nvidia", ", ".join(gpus)))
    return rows


def _ggml_folder(distribution: str) -> str | None:
    try:
        files = importlib.metadata.files(distribution) or []
    except Exception:  # not installed, or damaged; the packages' section shows which
        return None
    for file in files:
        if file.name.startswith(("libggml-base.", "ggml-base.")):
            return str(Path(str(file.locate())).parent)
    return None


def nvidia_gpus() -> list[str]:
    """Names of the NVIDIA GPUs that the kernel's driver shows to this process."""
    names = []
    for info in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = _read(str(info)).splitlines()
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    if not names:
        names = [f"device {path.name}" for path in sorted(Path("/dev").glob("nvidia[0-9]"))]
    return names


def _engines(report: Report) -> Rows:
    rows: Rows = []
    devices: list[str] = []
    found = registry()
    for row in found.rows():
        label = f"{row.name} {row.version}"
        if row.problem is not None:
            rows.append((label, row.problem))
            if not row.problem.startswith("disabled"):
                report.problems.append(row.problem)
            continue
        try:
            engine = found.engine(row.name)
            there = devices_of(engine)
            absence = None if there else asked(engine, "the reason why it has no device", engine.unavailable)
        except EngineError as error:
            rows.append((label, "broken, see problems"))
            report.problems.append(str(error))
            continue
        devices += [device.id for device in there]
        rows.append((label, ", ".join(f"{d.id}: {d.description}" for d in there) or absence or "no device"))
    _hint(report, [row.name for row in found.rows()], devices)
    return rows


def _hint(report: Report, names: list[str], devices: list[str]) -> None:
    if "reference" not in names:
        report.problems.append("the reference engine is not announced; reinstall ptn-runtime.")
    if names == ["reference"]:
        report.hints.append("only the slow reference engine is installed; for speed: pip install ptn-engine-ggml")
    if nvidia_gpus() and not any(device.startswith("cuda") for device in devices):
        report.hints.append(
            "an NVIDIA GPU is visible, but no engine offers a cuda device, so models run on what is listed above."
        )
    if os.environ.get(DISABLE_VARIABLE):
        report.hints.append(f"{DISABLE_VARIABLE}={os.environ[DISABLE_VARIABLE]} leaves engines out.")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
