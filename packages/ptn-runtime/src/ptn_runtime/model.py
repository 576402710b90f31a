"""The user's way in: `load` a package, call its methods."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from ptn_runtime.errors import Refusal
from ptn_runtime.session import Core, Session

if TYPE_CHECKING:
    from ptn_format.package import Package

    from ptn_runtime.engine import Device, Engine, EngineContext

__all__ = ["Model", "load"]


class Model(Session):
    """A loaded program on an engine, and its first session; made by `load`.

    Safe to use from several threads: calls of one session are taken one after the other, sessions run side by side.
    """

    def __init__(
        self, core: Core, context: EngineContext, engine: Engine, device: Device, refused: tuple[Refusal, ...]
    ) -> None:
        super().__init__(core, context)
        self._engine = engine
        self._device = device
        self._refused = refused

    @property
    def engine(self) -> str:
        """The name of the engine that runs the program."""
        return self._engine.name

    @property
    def device(self) -> str:
        """The id of the device that it runs on."""
        return self._device.id

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """The engines and devices that were asked before and why they were not taken."""
        return self._refused

    @property
    def path(self) -> str | None:
        """The package's path; None where it was loaded from memory."""
        return self._core.package.path

    def session(self) -> Session:
        """A second state over the same weights: its buffers start as the file gives them, and are its own.

        Raises:
            ClosedError: the model was closed.
        """
        with self._locked_context() as context, self._core.lease.lock:
            return Session(self._core, context.fork())

    def close(self) -> None:
        """Closes the model and every session made from it; waits for calls that are under way. Idempotent."""
        self._core.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __repr__(self) -> str:
        if self.closed:
            return "<Model: closed>"
        where = self.path or "loaded from memory"
        return f"<Model: {where}, methods {', '.join(self.methods)}, on {self.engine} ({self.device})>"


def load(
    source: str | os.PathLike[str] | bytes | memoryview | BinaryIO,
    engine: str | Engine | None = None,
    device: str | None = None,
    **options: Any,
) -> Model:
    """Loads a package and gets it ready to run.

    Args:
        source: the package's path, its bytes, or a binary file object.
        engine: the name of an installed engine (or an `Engine` of your own). None takes the best installed engine
            that runs every method of the program; `Model.engine`, `Model.device` and `Model.refused` tell the outcome.
        device: a device's id such as `cpu` or `cuda:1`; `cuda` takes the first of that family. None takes the
            engine's best.
        **options: the engine's own options, such as `threads=4`.

    Returns:
        The model; close it, or use it as a context manager, to free its memory at once.

    Raises:
        FormatError: (of `ptn_format`) the file is damaged or no package.
        OSError: the file cannot be read.
        EngineNotFoundError: no engine of that name is installed; the text lists those that are.
        EngineVersionError: the engine was written for another engine API.
        EngineLoadError: the engine could not be loaded.
        DeviceError: there is no such device, or it does not come up.
        UnsupportedMethodError: the named engine cannot run the program; lists every node with its reason.
        NoEngineError: no installed engine can run the program.
        LoweringError: the program cannot be lowered by this release.
        EngineError: an option is not known.
    """
    from ptn_format.package import open_package

    from ptn_runtime.lowering.program import LoweredProgram

    package = open_package(source)
    try:
        return _load(package, LoweredProgram(package), engine, device, options)
    except BaseException:
        package.close()
        raise


def _load(
    package: Package, program: Any, engine: str | Engine | None, device: str | None, options: dict[str, Any]
) -> Model:
    from ptn_runtime.registry import registry
    from ptn_runtime.survey import Survey

    picked = Survey(program, registry()).pick(engine, device, options)
    try:
        with picked.lease.lock:
            context = picked.lease.host.create_context(program, package)
    except BaseException:
        picked.lease.release()
        raise
    core = Core(package, program, picked.lease)
    return Model(core, context, picked.engine, picked.device, picked.refused)
