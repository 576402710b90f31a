"""`export`: from a module to a file in one call."""

from __future__ import annotations

import inspect
import operator
import os
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import torch
from torch.export import ExportedProgram

from ptn_export.dynamic_axes import AxisRequest, requested_axes
from ptn_export.errors import ExportError, ExportWarning, Problem
from ptn_export.native import NativeProgram, convert
from ptn_export.passes import check_names
from ptn_export.progress import Progress
from ptn_export.tracing import trace

__all__ = ["Method", "Traced", "export", "quantized", "trace_methods", "wanted_methods"]


@dataclass(frozen=True)
class Method:
    """One method of a package: which function of the module, and example inputs for it.

    Attributes:
        args: example inputs by position.
        kwargs: example inputs by name.
        dynamic_shapes: which axes may vary, as `torch.export.export` takes it.
        function: what to call: the name of a method of the module (`"encode"`, `"decoder.step"`) or that method itself
            (`model.encode`). By default the module's method of the same name as the package's.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    dynamic_shapes: Any = None
    function: str | Callable[..., Any] | None = None


@dataclass(frozen=True)
class Traced:
    """A captured method.

    Attributes:
        module: the module whose call is the method.
        method: its example inputs.
        program: what PyTorch captured.
        requests: the axes that were to be dynamic.
        remarks: what the user is to be warned of, each with the method's name.
    """

    module: torch.nn.Module
    method: Method
    program: ExportedProgram
    requests: Sequence[AxisRequest]
    remarks: Sequence[str]


def export(
    module: torch.nn.Module,
    args: tuple[Any, ...] | None,
    path: str | os.PathLike[str] | BinaryIO | None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    methods: Mapping[str, Method] | None = None,
    quantize: str | None = None,
    disable_passes: Collection[str] = (),
    source_lines: bool = True,
    progress: bool = False,
) -> NativeProgram:
    """Exports a module to a package: captures it, quantises it if asked to, and writes the file.

        export(model.eval(), (x,), "model.ptn", dynamic_shapes=({0: Dim("batch", min=1, max=64)},))

        prompt = Method((ids, positions), dynamic_shapes=({1: length}, {0: length}), function="forward")
        token = Method((ids[:, :1], positions[:1]), function="forward")
        export(model.eval(), None, "chat.ptn", methods={"prefill": prompt, "decode": token}, quantize="int4")

    The module is exported in the mode it is in; one in training mode gives a warning. It is not changed. All methods
    share its weights and buffers, each stored once.

    Args:
        module: the model.
        args: example inputs of `forward` by position; None where `methods` says all.
        path: the file to write, or a binary file open for writing; None writes nothing.
        kwargs: example inputs of `forward` by name.
        dynamic_shapes: which axes of the inputs of `forward` may vary, as `torch.export.export` takes it.
        methods: further methods of the module by name.
        quantize: the name of a scheme in `ptn_export.quantize.SCHEMES`, such as `int4` or `int8`.
        disable_passes: as for `to_native`.
        source_lines: as for `to_native`.
        progress: draw a bar on the standard error stream, if that is a terminal and the work takes long.

    Returns:
        The native program; `.report` says what the file holds.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: there is no method, scheme or pass of a name.
        ExportError: PyTorch cannot capture the model, or it holds what packages cannot; the text lists every problem
            and what to do.
        ImportError: `quantize` is given, and torchao is not installed.
        OSError: the file cannot be written.
    """
    disabled = check_names(disable_passes)
    wanted = wanted_methods(module, args, kwargs, dynamic_shapes, methods)
    with Progress(progress) as bar:
        traced = trace_methods(quantized(module, quantize, bar), wanted, bar)
        native, remarks = convert(
            {name: item.program for name, item in traced.items()},
            disabled,
            bar,
            source_lines=source_lines,
            requests={name: item.requests for name, item in traced.items()},
        )
        if path is not None:
            native.write(path, bar)
    remarks = [remark for item in traced.values() for remark in item.remarks] + remarks
    if remarks:
        warnings.warn("\n".join(remarks), ExportWarning, stacklevel=2)
    return native


def quantized(module: torch.nn.Module, scheme: str | None, bar: Progress) -> torch.nn.Module:
    """A quantised copy of the module; the module itself where `scheme` is None.

    Raises:
        ValueError: there is no such scheme.
        ImportError: torchao is not installed.
    """
    if scheme is None:
        return module
    from ptn_export.quantize import quantize_module

    bar.stage(f"quantise to {scheme}")
    return quantize_module(module, scheme)


def trace_methods(module: torch.nn.Module, methods: Mapping[str, Method], bar: Progress) -> dict[str, Traced]:
    """Captures methods of a module.

    Args:
        module: the module, or a quantised copy of it.
        methods: what `wanted_methods` has given.
        bar: shows what is being done.

    Raises:
        ExportError: PyTorch cannot capture some of them; all of them are named.
    """
    traced: dict[str, Traced] = {}
    failed: list[ExportError] = []
    for name, method in methods.items():
        bar.stage(f"capture {name}")
        assert isinstance(method.function, str)
        callee = _callee(module, method.function)
        try:
            program, remarks = trace(callee, method.args, method.kwargs, method.dynamic_shapes, method=name)
        except ExportError as error:
            failed.append(error)
            continue
        requests = requested_axes(callee, method.args, method.kwargs or {}, method.dynamic_shapes)
        remarks = [f"method '{name}': {remark}" for remark in remarks]
        traced[name] = Traced(callee, method, program, requests, remarks)
    if failed:
        problems: list[Problem] = [problem for error in failed for problem in error.problems]
        raise ExportError(problems) from failed[0].__cause__
    return traced


def wanted_methods(
    module: Any, args: Any, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any, methods: Mapping[str, Method] | None
) -> dict[str, Method]:
    """All methods by name, checked; the function of each is the path to it in the module."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"expected a torch.nn.Module, got {type(module).__name__}; "
            "to_native takes what torch.export.export returns, and functions go into the forward of a module"
        )
    wanted: dict[str, Method] = {}
    if args is not None:
        wanted["forward"] = Method(args, kwargs, dynamic_shapes, "forward")
    elif not methods:
        raise ValueError("there is nothing to export: give args, example inputs of forward, or methods")
    elif kwargs is not None or dynamic_shapes is not None:
        raise TypeError(
            "kwargs and dynamic_shapes belong to forward, but args is None; give args=(), or put them in methods"
        )
    named: Mapping[Any, Any] = methods or {}
    for name, method in named.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"a method's name is a text that users call it by, such as 'decode'; got {name!r}")
        if not isinstance(method, Method):
            raise TypeError(f"method '{name}': expected a ptn_export.Method, got {type(method).__name__}")
        if name in wanted:
            raise ValueError(f"'{name}' is given twice: by args and in methods")
        wanted[name] = method
    for name, method in wanted.items():
        if not isinstance(method.args, tuple):
            raise TypeError(
                f"method '{name}': args is a tuple with one example for each parameter, such as `(x,)`, "
                f"got {type(method.args).__name__}"
            )
        wanted[name] = replace(method, function=_path_of(module, name, method.function))
    return wanted


def _path_of(module: torch.nn.Module, name: str, function: str | Callable[..., Any] | None) -> str:
    """Where in `module` the function of a method is: `encode`, `decoder.step`, `forward`."""
    if function is None or isinstance(function, str):
        path = function or name
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
        if not callable(found):
            raise ValueError(
                f"method '{name}': {type(module).__name__} has no method '{path}'. "
                "Say what to call, such as Method(args, function='forward')"
            )
        return path
    owner, called = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(function, torch.nn.Module):
        owner, called = function, "forward"
    for prefix, part in module.named_modules():
        if part is owner and callable(getattr(part, called, None)):
            return f"{prefix}.{called}" if prefix else called
    raise ValueError(
        f"method '{name}': {function!r} is no method of the {type(module).__name__} or of a module in it. "
        "Write it as a method of the model, so that its weights are found there"
    )


def _callee(module: torch.nn.Module, path: str) -> torch.nn.Module:
    """A module whose forward is the function at `path`: `module` itself, or a view of it over the same tensors.

    PyTorch captures the forward of a module, and names weights as that module does.
    """
    if path == "forward":
        return module
    found = operator.attrgetter(path)(module)
    signature = inspect.signature(found.forward if isinstance(found, torch.nn.Module) else found)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)

    def forward(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        return operator.attrgetter(path)(self)(*args, **kwargs)

    forward.__signature__ = signature.replace(parameters=[own, *signature.parameters.values()])  # type: ignore[attr-defined]
    kind = type(module)
    view_type = types.new_class(kind.__name__, (kind,), exec_body=lambda space: space.update(forward=forward))
    view_type.__module__, view_type.__qualname__ = kind.__module__, kind.__qualname__
    view: torch.nn.Module = object.__new__(view_type)
    # Whoever calls the function calls no hooks of the module.
    view.__dict__.update(vars(module), _forward_hooks=OrderedDict(), _forward_pre_hooks=OrderedDict())
    return view
