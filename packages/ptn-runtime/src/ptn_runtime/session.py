"""Sessions: calling the methods of a loaded program, over one isolated set of state."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from ptn_runtime.arrays import Binder, Results, to_array
from ptn_runtime.describe import MethodInfo, TensorInfo, describe_method, describe_state
from ptn_runtime.errors import ClosedError, ExecutionError, InputError, MethodNotFoundError, StateError

if TYPE_CHECKING:
    from ptn_format.package import Package

    from ptn_runtime.engine import EngineContext, EngineExecutable, RunResult
    from ptn_runtime.hosts import HostLease
    from ptn_runtime.lowering.program import LoweredMethod, LoweredProgram, StateSpec
    from ptn_runtime.lowering.static import StaticGraph
    from ptn_runtime.profile import Profile

__all__ = ["Core", "Session", "State"]

Array = npt.NDArray[Any]


class Core:
    """What the sessions of one model share: the package, the lowered program and the engine's host."""

    def __init__(self, package: Package, program: LoweredProgram, lease: HostLease) -> None:
        self.package = package
        self.program = program
        self.lease = lease
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self.lock = threading.Lock()
        self.closed = False
        self._infos: dict[str, MethodInfo] = {}
        self._finalizer = weakref.finalize(self, _free_core, lease, package)
        self._finalizer.atexit = False  # at the end of the process the system frees more safely than we do

    def close(self) -> None:
        """Closes every session, then the host and the package. Idempotent."""
        with self.lock:
            self.closed = True
            sessions = list(self.sessions)
        for session in sessions:
            session._release()
        self._finalizer()

    def describe(self, method: str) -> MethodInfo:
        """What `method` takes and gives."""
        info = self._infos.get(method)
        if info is None:
            lowered = self.program.method(method)
            info = self._infos[method] = describe_method(self.package.method(method), lowered)
        return info


def _free_core(lease: HostLease, package: Package) -> None:
    try:
        lease.release()
    finally:
        package.close()


class Session:
    """One isolated state over a program's weights. Calls from several threads are taken one after the other."""

    def __init__(self, core: Core, context: EngineContext) -> None:
        self._core = core
        self._context = context
        self._lock = threading.RLock()
        self._callers: dict[str, _Caller] = {}
        self._closed = False
        self._state = State(self)
        self._finalizer = weakref.finalize(self, context.close)
        self._finalizer.atexit = False
        with core.lock:
            if not core.closed:
                core.sessions.add(self)
                return
        self._release()
        self._check_open()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the method `forward`, or the only method there is; see `run`."""
        caller = self._callers.get("forward")
        if caller is None:
            return self.run(self._default_method(), *args, **kwargs)
        return caller.call(args, kwargs)

    def run(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Runs one method.

        Args:
            method: its name.
            *args: inputs by position: anything with `__array__`, the buffer protocol or DLPack, of any strides;
                Python numbers for 0-d tensors; nested tuples, lists and dicts as exported. Integers are widened where
                every value fits; nothing else is converted.
            **kwargs: inputs by name. A nested value may also be given leaf by leaf, under the dotted names that
                `describe` shows.

        Returns:
            numpy arrays in the exported structure: one array for one output, a tuple for several.

        Raises:
            InputError: an argument does not fit; the text names it and says what is allowed.
            MethodNotFoundError: there is no such method.
            UnsupportedMethodError: the engine cannot run the method for these shapes.
            ExecutionError: the engine failed.
            ClosedError: the session or its model was closed.
        """
        try:
            caller = self._callers.get(method) or self._caller(method)
        except TypeError:
            _check_name(method, "run", self.methods)  # where it is what cannot be looked up, such as an array
            raise
        return caller.call(args, kwargs)

    def profile(self, method: str, /, *args: Any, repeat: int = 5, **kwargs: Any) -> Profile:
        """Where the time of a call goes, node by node; state stays as it is. An input called `repeat` goes by position.

        Args:
            method: its name.
            *args: inputs as in `run`.
            repeat: number of runs; the result has medians.
            **kwargs: inputs as in `run`.

        Raises:
            ExecutionError: the engine does not time single nodes.
            InputError, MethodNotFoundError, ClosedError: as `run`.
        """
        _check_name(method, "profile", self.methods)
        return self._caller(method).profile(args, kwargs, repeat)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods."""
        return tuple(self._core.program.methods)

    def describe(self, method: str | None = None) -> MethodInfo:
        """Names, element types and shape ranges of a method's inputs and outputs; `print` shows them as a table.

        Args:
            method: its name; None takes the one that calling the model runs.

        Raises:
            MethodNotFoundError: there is no such method.
            InputError: `method` is no name.
        """
        self._check_open()
        if method is not None:
            _check_name(method, "describe", self.methods)
        return self._core.describe(self._default_method() if method is None else method)

    @property
    def state(self) -> State:
        """The mutable buffers of the program by name."""
        return self._state

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Frees this session's state and buffers; waits for a call that is under way. Idempotent."""
        self._release()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _release(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._callers.clear()
                self._finalizer()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this session or its model was closed; load the package again to use it")

    def _default_method(self) -> str:
        methods = self._core.program.methods
        if "forward" in methods or len(methods) != 1:
            if "forward" not in methods:
                raise MethodNotFoundError(
                    f"the program has no method 'forward'; name one with run(method, ...): {', '.join(methods)}."
                )
            return "forward"
        return methods[0]

    def _caller(self, method: str) -> _Caller:
        with self._lock:
            self._check_open()
            caller = self._callers.get(method)
            if caller is None:
                _check_name(method, "run", self.methods)
                lowered = self._core.program.method(method)
                caller = self._callers[method] = _Caller(
                    self._lock, self._context.compile(method), lowered, self._context.host.name
                )
            return caller

    def _locked_context(self) -> _LockedContext:
        return _LockedContext(self)


class _LockedContext:
    """The engine context for the length of a `with` block, with no call running."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> EngineContext:
        self._session._lock.acquire()
        try:
            self._session._check_open()
        except ClosedError:
            self._session._lock.release()
            raise
        return self._session._context

    def __exit__(self, *_: object) -> None:
        self._session._lock.release()


class _Caller:
    """One method of one session: everything that a call needs, looked up once."""

    def __init__(
        self, lock: threading.RLock, executable: EngineExecutable, lowered: LoweredMethod, engine: str
    ) -> None:
        self._lock = lock
        self._method = lowered.name
        self._engine = engine
        self._executable = executable
        self._binder = Binder(lowered.name, lowered.inputs, lowered.signature)
        self._results = Results(lowered.name, lowered.signature, lowered.number_results)
        self._dtypes = tuple(spec.dtype.numpy for spec in lowered.inputs)
        self._flat_count = len(self._dtypes) if self._binder.flat else -1
        self._names = tuple(parameter.name for parameter in lowered.signature.parameters)

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Binds, runs, writes mutated inputs back and puts the results into their structure."""
        written: Sequence[tuple[int, Array]] = ()
        arrays: Sequence[Array]
        flat = args if not kwargs else self._in_order(args, kwargs)
        if flat is not None and len(flat) == self._flat_count and self._ready(flat):
            arrays = flat
        else:
            arrays, written = self._binder.bind(args, kwargs)
        shapes = tuple([array.shape for array in arrays])
        with self._lock:
            prepared = self._executable.prepare(shapes)
            result = prepared.build.run(arrays)
            graph = prepared.graph  # that of this run, where sizes depend on data
            if written:
                _write_back(graph, result, written)
        return self._results.build(graph, result)

    def profile(self, args: Sequence[Any], kwargs: Mapping[str, Any], repeat: int) -> Profile:
        """Binds and times every node."""
        from ptn_runtime.profile import profile_build

        arrays, _ = self._binder.bind(args, kwargs)
        with self._lock:
            prepared = self._executable.prepare(tuple(array.shape for array in arrays))
            try:
                return profile_build(prepared, arrays, self._method, self._engine, repeat)
            except NotImplementedError as error:
                raise ExecutionError(f"engine '{self._engine}' cannot profile: {error}.") from error

    def _in_order(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        """Positional and named arguments in the order of the parameters; None where they are not exactly those."""
        names = self._names[len(args) :]
        if len(names) != len(kwargs) or any(name not in kwargs for name in names):
            return None
        return [*args, *[kwargs[name] for name in names]]

    def _ready(self, args: Sequence[Any]) -> bool:
        """Whether every argument is already the array that the engine takes; shapes are checked with the build."""
        for value, dtype in zip(args, self._dtypes, strict=True):
            if type(value) is not np.ndarray or value.dtype != dtype:
                return False
            flags = value.flags
            if not (flags.c_contiguous and flags.aligned):
                return False
        return True


def _check_name(method: Any, called: str, methods: Sequence[str]) -> None:
    """Refuses what is no method's name, as when inputs are given in its place.

    Raises:
        InputError: `method` is no string.
    """
    if not isinstance(method, str):
        example = "forward" if "forward" in methods else methods[0]
        raise InputError(
            f"{called}(method, ...) takes the name of a method first, got {type(method).__name__}. Pass one of "
            f"{', '.join(map(repr, methods))}, then the inputs: {called}('{example}', ...)."
        )


def _write_back(graph: StaticGraph, result: RunResult, written: Sequence[tuple[int, Array]]) -> None:
    places = {id(old): place for place, (old, _) in enumerate(graph.input_updates)}
    for index, target in written:
        place = places.get(id(graph.inputs[index]))
        if place is not None:
            np.copyto(target, result.input_updates[place], casting="no")


class State(Mapping[str, Array]):
    """The mutable buffers of one session by name. Reading gives copies; assigning replaces a buffer's contents.

    `dict(state)` is a snapshot, `state.update(snapshot)` restores it.
    """

    def __init__(self, session: Session) -> None:
        # A weak reference, as the session holds this object: a cycle would put off freeing the weights.
        self._session_ref = weakref.ref(session)

    @property
    def _session(self) -> Session:
        session = self._session_ref()
        if session is None:
            raise ClosedError("the session that this state belongs to is gone; keep the model or session itself")
        return session

    @property
    def _specs(self) -> Mapping[str, StateSpec]:
        return self._session._core.program.states

    def __getitem__(self, name: str) -> Array:
        self._spec(name)
        with self._session._locked_context() as context:
            return context.read_state(name)

    def __setitem__(self, name: str, value: Any) -> None:
        array = self._convert(name, value)
        with self._session._locked_context() as context:
            context.write_state(name, array)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._specs))

    def __len__(self) -> int:
        return len(self._specs)

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __repr__(self) -> str:
        if not self._specs:
            return "<State: the program has none>"
        return "<State: " + ", ".join(str(self.describe(name)) for name in self) + ">"

    def describe(self, name: str) -> TensorInfo:
        """Element type and shape of one state.

        Raises:
            StateError: there is no such state.
        """
        return describe_state(self._spec(name))

    def update(self, values: Mapping[str, Any]) -> None:
        """Replaces several buffers at once: all of them, or none where one does not fit.

        Raises:
            StateError: there is no such state, or a value does not fit it.
        """
        arrays = {name: self._convert(name, value) for name, value in values.items()}
        with self._session._locked_context() as context:
            for name, array in arrays.items():
                context.write_state(name, array)

    def reset(self, *names: str) -> None:
        """Puts the named buffers (all of them, where none is named) back to the values that the file gives them.

        Raises:
            StateError: there is no such state.
        """
        specs = [self._spec(name) for name in names]
        with self._session._locked_context() as context:
            if not names:
                context.reset_state()
            for spec in specs:
                context.write_state(spec.key, self._initial(spec))

    def _initial(self, spec: StateSpec) -> Array:
        if spec.has_data:
            return np.array(self._session._core.package.constant(spec.key), dtype=spec.dtype.numpy, order="C")
        return np.zeros(spec.shape, spec.dtype.numpy)

    def _convert(self, name: str, value: Any) -> Array:
        spec = self._spec(name)
        takes = f"{spec.dtype.torch_name}{list(spec.shape)}"
        try:
            array = to_array(value, f"state '{name}'", spec.dtype, takes, not spec.shape)
        except InputError as error:
            raise StateError(str(error)) from error
        if array.shape != spec.shape:
            raise StateError(f"state '{name}' takes {takes}, got shape {list(array.shape)}.")
        return np.array(array, order="C", copy=True)  # the engine may keep it

    def _spec(self, name: str) -> StateSpec:
        try:
            return self._specs[name]
        except KeyError:
            import difflib  # only errors need it

            names = [str(known) for known in self._specs]
            close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            listed = ", ".join(names) or "none"
            raise StateError(f"the program has no state '{name}'. Its states: {listed}.{hint}") from None
