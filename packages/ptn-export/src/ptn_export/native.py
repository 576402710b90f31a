"""`to_native`: the way from exported programs to a package."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from ptn_format.graph import Program
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from ptn_export.bodies import Problems
from ptn_export.capture import Captured, capture
from ptn_export.constants import Constant, ConstantStore
from ptn_export.dynamic_axes import AxisRequest
from ptn_export.errors import ExportError, ExportWarning
from ptn_export.leftovers import leftovers
from ptn_export.packing import agreed_packings, pack
from ptn_export.passes import check_names, run_all
from ptn_export.progress import Progress
from ptn_export.report import Report
from ptn_export.serialize import SerializedMethod, serialize_method, shared_memory

if TYPE_CHECKING:
    from ptn_export.runtime import EngineAnswer

__all__ = ["NativeProgram", "convert", "to_native"]

_FORMAT_VERSION = "1.0"


@dataclass(frozen=True)
class NativeProgram:
    """A program in the file's own terms, ready to be saved.

    Attributes:
        program: the graph of every method.
        constants: the data of every key that the package will hold. Parameters are the module's own tensors,
            buffers are copies made by `to_native`.
        rewrites: by method, how often each pass fused or folded something.
        folded: by key of a constant that a pass has computed, the keys of the constants that it was made from.
        requests: by method, the axes that the user asked to be dynamic, where that is known.
    """

    program: Program
    constants: Mapping[str, Constant]
    rewrites: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    folded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    requests: Mapping[str, Sequence[AxisRequest]] = field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods."""
        return tuple(method.name for method in self.program.methods)

    @property
    def report(self) -> Report:
        """What the package will hold; `str()` gives a text for people."""
        return Report.of(
            self.program, self.constants, rewrites=self.rewrites, folded=self.folded, requests=self.requests
        )

    def engines(self) -> tuple[EngineAnswer, ...]:
        """What each installed engine says about the program, best first.

        Raises:
            ImportError: ptn-runtime is not installed; `pip install 'ptn-export[check]'` installs it.
        """
        from ptn_export.runtime import survey

        return survey(self.program, self.constants)

    def save(self, path: str | os.PathLike[str] | BinaryIO, *, progress: bool = False) -> None:
        """Writes the package. An existing file is replaced only when the new one is complete.

        Args:
            path: where to, such as `model.ptn`; missing folders are made. Or a binary file open for writing.
            progress: draw a bar on the standard error stream, if that is a terminal and writing takes long.

        Raises:
            ptn_format.WriteError: the format cannot hold the program.
            OSError: the file cannot be written.
        """
        with Progress(progress) as bar:
            self.write(path, bar)

    def write(self, path: str | os.PathLike[str] | BinaryIO, bar: Progress) -> None:
        """The same with a bar of the caller's."""
        from ptn_format.package import write_package

        if isinstance(path, str | os.PathLike):
            folder = os.path.dirname(os.path.abspath(os.fspath(path)))
            os.makedirs(folder, exist_ok=True)
        bar.stage("write", sum(constant.nbytes for constant in self.constants.values()), "B")
        write_package(path, self.program, self.constants, progress=bar.advance)


def to_native(
    program: ExportedProgram | Mapping[str, ExportedProgram],
    *,
    disable_passes: Collection[str] = (),
    source_lines: bool = True,
    progress: bool = False,
) -> NativeProgram:
    """Turns exported programs into a native program that can be saved as a package.

    The input is not changed. Several methods may share weights and buffers: equal names must mean equal data.

    Buffers are copied as they are now, so that a later change of the module does not reach the package; parameters
    are referenced until `save`. PyTorch lets `exported.module()` write into the buffers of the exported program, so
    call `to_native` before you try the exported program out, if its buffers change while it runs.

    Args:
        program: what `torch.export.export` returned (it becomes the method `forward`), or several by method name.
        disable_passes: names of passes that shall not rewrite the graph, such as `("attention", "rope")`; all names
            are in `ptn_export.PASSES`.
        source_lines: whether the package says of each operator which line and module of the model it comes from;
            errors at run time and `ptn show` quote it.
        progress: draw a bar on the standard error stream, if that is a terminal and the work takes long.

    Returns:
        The native program: `to_native(exported).save("model.ptn")`.

    Raises:
        TypeError: `program` is something else.
        ValueError: there is no method, a method's name is empty, or there is no pass of a name in `disable_passes`.
        ExportError: a program holds what packages cannot; the text lists every problem and what to do.
    """
    programs = _checked(program)
    disabled = check_names(disable_passes)
    with Progress(progress) as bar:
        native, remarks = convert(programs, disabled, bar, source_lines=source_lines)
    if remarks:
        warnings.warn("\n".join(remarks), ExportWarning, stacklevel=2)
    return native


def convert(
    programs: Mapping[str, ExportedProgram],
    disabled: Collection[str],
    bar: Progress,
    *,
    source_lines: bool = True,
    requests: Mapping[str, Sequence[AxisRequest]] | None = None,
) -> tuple[NativeProgram, list[str]]:
    """`to_native` for checked arguments, and what is to be warned of.

    Args:
        programs: the programs by method name.
        disabled: names of passes.
        bar: shows what is being done.
        source_lines: whether nodes say where they come from.
        requests: by method, the axes that the user asked to be dynamic.

    Raises:
        ExportError: a program holds what packages cannot.
    """
    store = ConstantStore()
    methods: list[SerializedMethod] = []
    remarks: list[str] = []
    rewrites: dict[str, Mapping[str, int]] = {}
    folded: dict[str, tuple[str, ...]] = {}
    problems = {name: Problems(name, source_lines=source_lines) for name in programs}
    captured = {name: _captured(exported, problems[name], bar) for name, exported in programs.items()}
    state = _state(captured.values())
    for name, exported in programs.items():
        remarks += [f"method '{name}': {remark}" for remark in leftovers(exported)]
        method = captured[name]
        if method is not None:
            bar.stage(f"optimise {name}")
            rewrites[name] = run_all(method, disabled, state, problems[name])
            folded |= method.origins
            bar.stage(f"serialise {name}")
            methods.append(serialize_method(name, exported, method, store, problems[name]))
    found = [problem for item in problems.values() for problem in item.found]
    if found:
        raise ExportError(found) from next((item.cause for item in problems.values() if item.cause), None)
    without_data = _without_data(methods, store)
    packed = agreed_packings({method.name: method.packings() for method in methods})
    finished = tuple(method.finish(without_data, packed) for method in methods)
    keys = set().union(*(method.keys() for method in methods)) - without_data
    constants = pack(store.select(keys), packed)
    kept = {key: sources for key, sources in folded.items() if key in constants}
    return NativeProgram(Program(_FORMAT_VERSION, finished), constants, rewrites, kept, requests or {}), remarks


def _checked(program: Any) -> dict[str, ExportedProgram]:
    """The methods by name."""
    if isinstance(program, ExportedProgram):
        return {"forward": program}
    if isinstance(program, torch.nn.Module):
        raise TypeError(
            f"expected an ExportedProgram, got the module {type(program).__name__}; "
            "export it first: torch.export.export(module.eval(), example_inputs)"
        )
    if not isinstance(program, Mapping):
        raise TypeError(
            f"expected an ExportedProgram or a dict of method names to ExportedPrograms, got {type(program).__name__}"
        )
    if not program:
        raise ValueError("expected at least one method, got an empty dict")
    for name, exported in program.items():
        if not isinstance(name, str):
            raise TypeError(f"method names are strings, got {name!r} ({type(name).__name__})")
        if not name:
            raise ValueError("a method's name is empty; name it as the user will call it, such as 'forward'")
        if not isinstance(exported, ExportedProgram):
            raise TypeError(f"method '{name}': expected an ExportedProgram, got {type(exported).__name__}")
    return dict(program)


def _captured(exported: ExportedProgram, problems: Problems, bar: Progress) -> Captured | None:
    """The decomposed program; None with a problem where PyTorch fails to decompose it."""
    bar.stage(f"decompose {problems.method}")
    try:
        return capture(exported)
    except Exception as error:  # whatever PyTorch raises, the user gets the one report
        shared = shared_memory(exported)
        if shared:
            pairs = ", ".join(f"'{a}' with '{b}'" for a, b in shared)
            reason = f"PyTorch cannot take the program apart; buffers share memory: {pairs}"
            hint = "give each buffer that the model changes its own memory (`.clone()`)"
        else:
            text = str(error).strip().partition("\n")[0] or "no message"
            reason = f"PyTorch cannot take the program apart: {type(error).__name__}: {text}"
            hint = "try `exported.run_decompositions()` alone; if that works, report this as a fault of ptn-export"
        problems.add("decomposition", reason, hint)
        problems.cause = error
        return None


def _state(captured: Iterable[Captured | None]) -> frozenset[str]:
    """Keys of the buffers that any method changes: no method may take them for constants."""
    return frozenset(
        method.fqn(spec.target)
        for method in captured
        if method is not None
        for spec in method.program.graph_signature.output_specs
        if spec.kind is OutputKind.BUFFER_MUTATION and spec.target
    )


def _without_data(methods: list[SerializedMethod], store: ConstantStore) -> set[str]:
    """Buffers that need no bytes: they start as zeros, and every method that uses them also changes them."""
    mutated = set().union(*(method.keys() - method.read_only_keys() for method in methods))
    read_only = set().union(*(method.read_only_keys() for method in methods))
    return {key for key in mutated - read_only if store[key].starts_as_zeros()}
