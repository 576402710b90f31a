"""Which engines are installed: the entry points of group `ptn.engines`, read once and loaded only when asked for.

Every plugin comes as a row. Whatever is wrong with one (broken metadata, a missing module, another API version, a name
taken twice) is that row's problem, and an error only for those who ask for this engine.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.metadata
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ptn_runtime._version import __version__
from ptn_runtime.engine import API_VERSION, Engine, EngineSpec
from ptn_runtime.errors import EngineError, EngineLoadError, EngineNotFoundError, EngineVersionError

__all__ = ["DISABLE_VARIABLE", "GROUP", "EngineRow", "Registry", "get_engine", "installed_engines", "registry"]

GROUP = "ptn.engines"
DISABLE_VARIABLE = "PTN_ENGINES_DISABLE"
"""Environment variable: comma-separated names of engines to leave out."""


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One announced engine, as its distribution's metadata has it.

    Attributes:
        name: what users type.
        distribution: the distribution that announces it.
        version: the distribution's version; `?` where its metadata lacks one.
        target: `module:attribute` of the `EngineSpec`.
        problem: why it cannot be used, as far as the metadata tells; else None.
    """

    name: str
    distribution: str
    version: str
    target: str
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Registry:
    """The engines that one scan of the installed distributions found. Safe to use from several threads."""

    def __init__(self, path: list[str] | None = None) -> None:
        """Args: path: folders to scan in place of `sys.path`."""
        self._path = path
        self._lock = threading.RLock()
        self._scanned: tuple[EngineRow, ...] | None = None
        self._specs: dict[str, EngineSpec | EngineError] = {}
        self._engines: dict[str, Engine | EngineError] = {}

    def rows(self) -> tuple[EngineRow, ...]:
        """Every announced engine, by name; reads metadata only and imports nothing."""
        with self._lock:
            if self._scanned is None:
                self._scanned = _scan(self._path)
        disabled = _disabled()
        return tuple(
            EngineRow(row.name, row.distribution, row.version, row.target, f"disabled by {DISABLE_VARIABLE}")
            if row.name in disabled
            else row
            for row in self._scanned
        )

    def names(self) -> tuple[str, ...]:
        """The names that can be asked for: without those that are disabled or damaged."""
        return tuple(row.name for row in self.rows() if row.problem is None)

    def row(self, name: str) -> EngineRow:
        """The row of the engine called `name`.

        Raises:
            EngineNotFoundError: there is none, or it is disabled; the text lists the installed ones.
            EngineLoadError: its metadata is damaged, or several distributions use the name.
        """
        rows = [row for row in self.rows() if row.name == name]
        usable = [row for row in self.rows() if row.problem is None]
        installed = f"Installed: {', '.join(map(str, usable)) or 'none'}."
        if not rows:
            close = difflib.get_close_matches(name, [row.name for row in usable], n=1, cutoff=0.5)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise EngineNotFoundError(f"no engine named '{name}' is installed. {installed}{hint}")
        if name in _disabled():
            raise EngineNotFoundError(
                f"engine '{name}' is disabled by {DISABLE_VARIABLE}={os.environ[DISABLE_VARIABLE]}. {installed} "
                "Remove its name from the variable to use it."
            )
        if rows[0].problem is not None:
            raise EngineLoadError(rows[0].problem)
        return rows[0]

    def spec(self, name: str) -> EngineSpec:
        """The engine's `EngineSpec`, its API version checked; the factory is not imported.

        Raises:
            EngineNotFoundError: there is no such engine.
            EngineVersionError: it was written for another engine API.
            EngineLoadError: its module is missing or broken.
        """
        row = self.row(name)
        with self._lock:
            if name not in self._specs:
                try:
                    self._specs[name] = _load_spec(row)
                except EngineError as error:
                    self._specs[name] = error
            found = self._specs[name]
        if isinstance(found, EngineError):
            raise found
        return found

    def engine(self, name: str) -> Engine:
        """The engine: one object per process.

        Raises:
            EngineNotFoundError: there is no such engine.
            EngineVersionError: it was written for another engine API.
            EngineLoadError: it cannot be imported or made.
        """
        spec = self.spec(name)
        row = self.row(name)
        with self._lock:
            if name not in self._engines:
                try:
                    self._engines[name] = _make_engine(row, spec)
                except EngineError as error:
                    self._engines[name] = error
            found = self._engines[name]
        if isinstance(found, EngineError):
            raise found
        return found


def _disabled() -> frozenset[str]:
    return frozenset(name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(",") if name.strip())


def _scan(path: list[str] | None) -> tuple[EngineRow, ...]:
    """Reads the entry points of every distribution; the first of two installations of one distribution counts."""
    distributions: Iterable[importlib.metadata.Distribution]
    distributions = importlib.metadata.distributions() if path is None else importlib.metadata.distributions(path=path)
    rows: list[EngineRow] = []
    seen: set[str] = set()
    for distribution in distributions:
        try:
            text = distribution.read_text("entry_points.txt")
        except (OSError, UnicodeDecodeError):
            continue  # not ours to judge: nothing says that this distribution has an engine
        if not text or GROUP not in text:
            continue
        name, version = _identity(distribution)
        if name.lower().replace("_", "-") not in seen:
            seen.add(name.lower().replace("_", "-"))
            rows += _entry_points(text, name, version)
    return _mark_duplicates(rows)


def _identity(distribution: importlib.metadata.Distribution) -> tuple[str, str]:
    """Name and version, from the folder's name where the metadata file is damaged."""
    name = version = None
    # A damaged dist-info raises nearly anything; it must not hide the other engines.
    with contextlib.suppress(Exception):
        name, version = distribution.metadata["Name"], distribution.version
    if not name:
        folder = str(getattr(distribution, "_path", "?")).replace("\\", "/").rsplit("/", 1)[-1]
        name = folder.split("-")[0] or "?"
    return name, version or "?"


def _entry_points(text: str, distribution: str, version: str) -> list[EngineRow]:
    """The rows of one `entry_points.txt`; a line that is not one becomes a row with a problem."""
    rows = []
    section = ""
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("["):
            section = line.strip("[]").strip()
        elif section == GROUP:
            name, equals, target = (part.strip() for part in line.partition("="))
            target = target.split("[")[0].strip()
            module, _, attribute = target.partition(":")
            good = equals and name and all(p.isidentifier() for p in [*module.split("."), *attribute.split(".")])
            problem = (
                None
                if good
                else (
                    f"{distribution} {version} announces an engine with a damaged entry point: {line!r} is not "
                    f"'name = module:attribute'. Reinstall {distribution}."
                )
            )
            rows.append(EngineRow(name or "?", distribution, version, target, problem))
    return rows


def _mark_duplicates(rows: list[EngineRow]) -> tuple[EngineRow, ...]:
    owners: dict[str, list[EngineRow]] = {}
    for row in rows:
        owners.setdefault(row.name, []).append(row)
    result = []
    for row in sorted(rows, key=lambda row: (row.name, row.distribution)):
        same = sorted(f"{other.distribution} {other.version}" for other in owners[row.name])
        problem = row.problem
        if len(same) > 1 and problem is None:
            problem = (
                f"{len(same)} distributions announce an engine named '{row.name}': {' and '.join(same)}. "
                "Uninstall all but one."
            )
        result.append(EngineRow(row.name, row.distribution, row.version, row.target, problem))
    return tuple(result)


def _load_spec(row: EngineRow) -> EngineSpec:
    spec = _import(row, row.target, "")
    if not isinstance(spec, EngineSpec):
        raise EngineLoadError(
            f"engine '{row.name}': {row.target} of {row.distribution} {row.version} is a {type(spec).__name__}, "
            "not an EngineSpec; this is a fault of that package."
        )
    if spec.name != row.name:
        raise EngineLoadError(
            f"engine '{row.name}': the EngineSpec of {row.distribution} {row.version} calls itself '{spec.name}'; "
            "the entry point and the spec must agree; this is a fault of that package."
        )
    _check_version(row, spec)
    return spec


def _check_version(row: EngineRow, spec: EngineSpec) -> None:
    major, minor = spec.api_version
    if major == API_VERSION[0] and minor <= API_VERSION[1]:
        return
    text = (
        f"{row.distribution} {row.version} was written for engine API {major}.{minor}; "
        f"ptn-runtime {__version__} offers {API_VERSION[0]}.{API_VERSION[1]}. "
    )
    if (major, minor) > API_VERSION:
        raise EngineVersionError(f"{text}Upgrade ptn-runtime or install {row.distribution}<{row.version}.")
    raise EngineVersionError(f"{text}Upgrade {row.distribution} or install an older ptn-runtime.")


def _make_engine(row: EngineRow, spec: EngineSpec) -> Engine:
    factory: Any = _import(row, spec.factory, spec.install_hint)
    try:
        engine = factory()
    except EngineError:
        raise
    except (Exception, SystemExit) as error:  # the plugin's own code: whatever it raises is this engine's problem
        raise EngineLoadError(_load_text(row, spec.install_hint, error)) from error
    if not isinstance(engine, Engine):
        raise EngineLoadError(
            f"engine '{row.name}': {spec.factory} of {row.distribution} {row.version} gave a "
            f"{type(engine).__name__}, not an Engine; this is a fault of that package."
        )
    return engine


def _import(row: EngineRow, target: str, hint: str) -> object:
    """What `module:attribute` names.

    Raises:
        EngineLoadError: the module is missing or broken, or has no such attribute.
    """
    module_name, _, attribute = target.partition(":")
    try:
        found: object = importlib.import_module(module_name)
    except EngineError:
        raise
    except (Exception, SystemExit) as error:  # importing runs the plugin's code
        raise EngineLoadError(_load_text(row, hint, error)) from error
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise EngineLoadError(_load_text(row, hint, error)) from error
    return found


def _load_text(row: EngineRow, hint: str, error: BaseException) -> str:
    cause = f"{type(error).__name__}: {error}".rstrip(": ")
    advice = hint or f"Reinstall it: pip install --force-reinstall {row.distribution}"
    return f"engine '{row.name}' ({row.distribution} {row.version}) could not be loaded: {cause}. {advice.rstrip('.')}."


_registry: Registry | None = None
_registry_lock = threading.Lock()


def registry() -> Registry:
    """The process-wide registry; distributions are scanned on its first use, once."""
    global _registry
    with _registry_lock:
        if _registry is None:
            _registry = Registry()
        return _registry


def installed_engines() -> tuple[EngineRow, ...]:
    """Every announced engine with its distribution and version; imports none of them."""
    return registry().rows()


def get_engine(name: str) -> Engine:
    """The installed engine called `name`; raises as `Registry.engine` does."""
    return registry().engine(name)
