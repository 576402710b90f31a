"""Checks of the reference engine against PyTorch's eager mode: whatever eager computes, the kernel must too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from ptn_format.dtypes import ScalarType
from ptn_runtime.reference import KERNELS, evaluate
from ptn_runtime.shapes import OPERATORS
from torch.utils._python_dispatch import TorchDispatchMode

DTYPES = {
    torch.uint8: ScalarType.BYTE,
    torch.int8: ScalarType.CHAR,
    torch.int16: ScalarType.SHORT,
    torch.int32: ScalarType.INT,
    torch.int64: ScalarType.LONG,
    torch.float16: ScalarType.HALF,
    torch.float32: ScalarType.FLOAT,
    torch.float64: ScalarType.DOUBLE,
    torch.bool: ScalarType.BOOL,
    torch.bfloat16: ScalarType.BFLOAT16,
    torch.uint16: ScalarType.UINT16,
    torch.uint32: ScalarType.UINT32,
    torch.uint64: ScalarType.UINT64,
}

# Results that need not be equal: memory that nothing initialised, and random numbers.
UNDEFINED = frozenset({"aten.empty.memory_format", "aten.empty_like.default", "aten.empty_strided.default"}) | {
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
    "aten.empty_permuted.default",
}

# Relative tolerances. PyTorch adds in another order, and in half and bfloat16 some of its kernels round between steps.
TOLERANCES = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5, torch.float64: 1e-7}

# PyTorch does not say which of several equal elements these name.
UNORDERED = {
    "aten.sort.default": "self",
    "aten.argsort.default": "self",
    "aten.topk.default": "self",
    "aten.kthvalue.default": "self",
    "aten.median.dim": "self",
    "aten.nanmedian.dim": "self",
    "aten.mode.default": "self",
}


# Factors are open up to signs, or to turns where values are equal: what they make together is not.
TOGETHER: dict[str, Callable[[list[torch.Tensor]], list[torch.Tensor]]] = {
    "aten._linalg_svd.default": lambda usv: (
        [usv[1], usv[0][..., : usv[1].shape[-1]] * usv[1][..., None, :] @ usv[2][..., : usv[1].shape[-1], :]]
        if usv[0].dim() > 1
        else usv
    ),
    # The factors are there for the backward pass; PyTorch takes those of the transposed matrix.
    "aten._linalg_det.default": lambda results: results[:1],
    "aten._linalg_slogdet.default": lambda results: results[:2],
    "aten._linalg_eigh.default": lambda wv: [wv[0], wv[1] * wv[0][..., None, :] @ wv[1].mT] if wv[1].dim() > 1 else wv,
}

# Eager mode computes these in float32 throughout, and what is nearly singular magnifies its rounding.
ILL_CONDITIONED = ("linalg_", "_linalg_", "cholesky", "triangular_solve")


class Unsupported(Exception):
    """The call uses what the format cannot hold: complex numbers, float8, sparse tensors."""


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor as a contiguous array; bfloat16 keeps its bits."""
    if tensor.dtype not in DTYPES or tensor.layout is not torch.strided:
        raise Unsupported(f"{tensor.dtype} {tensor.layout}")
    plain = tensor.detach().resolve_neg().contiguous()
    if tensor.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return plain.numpy().copy()


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """The array as a tensor."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, order="C"))


def to_argument(value: Any) -> Any:
    """A PyTorch argument as kernels get it."""
    if isinstance(value, torch.Tensor):
        return to_numpy(value)
    if isinstance(value, list | tuple):
        return tuple(to_argument(item) for item in value)
    if isinstance(value, torch.dtype):
        if value not in DTYPES:
            raise Unsupported(str(value))
        return DTYPES[value]
    if isinstance(value, torch.memory_format | torch.layout | torch.device):
        return str(value)
    if isinstance(value, complex):
        raise Unsupported("complex number")
    return value


def canonical(func: Any) -> str:
    """The operator's canonical name; `_copy` views bear the view's name."""
    namespace, name = func._schema.name.split("::")
    overload = func._schema.overload_name or "default"
    if f"{namespace}.{name}.{overload}" not in OPERATORS and name.endswith("_copy"):
        name = name.removesuffix("_copy")
    return f"{namespace}.{name}.{overload}"


def bind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The call's arguments by schema name."""
    names = [argument.name for argument in func._schema.arguments]
    bound = dict(zip(names, args, strict=False)) | kwargs
    return {name: to_argument(value) for name, value in bound.items()}


def outputs_of(results: Any) -> list[torch.Tensor]:
    """The tensors among a call's results, lists flattened."""
    if isinstance(results, torch.Tensor):
        return [results]
    if isinstance(results, list | tuple):
        return [tensor for item in results for tensor in outputs_of(item)]
    return [torch.tensor(results)] if isinstance(results, bool | int | float) else []


def compare(name: str, got: tuple[np.ndarray, ...], want: list[torch.Tensor]) -> None:
    """Fails where dtypes, shapes or values differ."""
    assert len(got) == len(want), f"{name}: {len(got)} results, eager gives {len(want)}"
    for index, (array, tensor) in enumerate(zip(got, want, strict=True)):
        if tensor.dtype not in DTYPES:
            raise Unsupported(str(tensor.dtype))
        assert DTYPES[tensor.dtype] is ScalarType.from_numpy(array.dtype), (
            f"{name}: result {index} is {array.dtype}, eager gives {tensor.dtype}"
        )
        assert tuple(tensor.shape) == array.shape, f"{name}: result {index} is {array.shape}, not {tensor.shape}"
        if name not in UNDEFINED and OPERATORS[name].deterministic:
            room = 100 if name.removeprefix("aten.").startswith(ILL_CONDITIONED) else 1
            assert_close(f"{name}: result {index}", array, tensor.detach().contiguous(), room)


def assert_close(what: str, array: np.ndarray, want: torch.Tensor, room: int = 1) -> None:
    """Fails where values differ by more than `room` times the dtype's tolerance, relative to the largest one around."""
    if _same_bits(array, want):
        return
    got = from_numpy(array)
    rtol = TOLERANCES.get(want.dtype, 0.0) * room
    finite = want[torch.isfinite(want)] if rtol else want
    largest = float(finite.abs().max()) if rtol and finite.numel() else 0.0
    torch.testing.assert_close(
        got,
        want,
        rtol=rtol,
        atol=rtol * max(min(largest, 10.0), 1.0),
        equal_nan=True,
        check_stride=False,
        msg=lambda text: f"{what}: {text}",
    )


def _same_bits(array: np.ndarray, want: torch.Tensor) -> bool:
    """Whether nothing differs at all, which is told much faster than how much differs."""
    expected = to_numpy(want)
    return array.shape == expected.shape and array.tobytes() == expected.tobytes()


# In half and bfloat16 eager mode rounds every partial sum of these; the kernels round once. Float32 is the judge there.
ROUNDED_STEPWISE = frozenset(
    {
        "aten._adaptive_avg_pool2d_backward.default",
        "aten.addbmm.default",
        "aten.avg_pool2d_backward.default",
        "aten.convolution.default",
        "aten.embedding_dense_backward.default",
        "aten.grid_sampler_2d.default",
        "aten.grid_sampler_3d.default",
        "aten.max_pool2d_with_indices_backward.default",
    }
)
REDUCED = (torch.float16, torch.bfloat16)


def in_float32(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], want: list[torch.Tensor]
) -> list[torch.Tensor]:
    """What eager mode gives for the arguments in float32, rounded to the dtypes of `want`."""

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.dtype in REDUCED else tensor

    wide_args, wide_kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, widen, (args, kwargs))
    results = outputs_of(func(*wide_args, **wide_kwargs))
    return [result.to(tensor.dtype) for result, tensor in zip(results, want, strict=True)]


def check_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> None:
    """Runs the kernel of `func` on the same arguments and compares."""
    name = canonical(func)
    bound = bind(func, args, kwargs)
    got = evaluate(name, bound)
    want = outputs_of(results)
    if name in ROUNDED_STEPWISE and want[0].dtype in REDUCED:
        want = in_float32(func, args, kwargs, want)
    if name in TOGETHER:
        got = tuple(to_numpy(tensor) for tensor in TOGETHER[name]([from_numpy(array) for array in got]))
        want = TOGETHER[name](want)
    if name in UNORDERED and bound["self"].ndim:
        got, want = _dereferenced(bound, got), [*want[:-1], _referenced(bound, want[-1])]
    compare(name, got, want)


def _dereferenced(bound: dict[str, Any], got: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Puts the elements that the last result names in its place."""
    return (*got[:-1], to_numpy(_referenced(bound, from_numpy(got[-1]))))


def _referenced(bound: dict[str, Any], index: torch.Tensor) -> torch.Tensor:
    source, dim = from_numpy(bound["self"]), bound.get("dim", -1)
    if index.dim() < source.dim():
        return source.gather(dim, index.unsqueeze(dim)).squeeze(dim)
    return source.gather(dim, index)


class Recorder(TorchDispatchMode):
    """Runs eager code and keeps each operator call that has a kernel, with copies of its arguments.

    Attributes:
        calls: (operator, arguments, keyword arguments, results).
        missing: canonical names of functional operators without a kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self.missing: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        functional = not func._schema.is_mutable
        name = canonical(func)
        if functional and name in KERNELS:
            before = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
            results = func(*args, **kwargs)
            after = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, results)
            self.calls.append((func, *before, after))
            return results
        if functional:
            self.missing.add(name)
        return func(*args, **kwargs)


class Eager:
    """What tests need of this module."""

    Recorder = Recorder
    Unsupported = Unsupported
    canonical = staticmethod(canonical)
    check_call = staticmethod(check_call)
    compare = staticmethod(compare)
    to_numpy = staticmethod(to_numpy)

    @staticmethod
    def run(name: str, **arguments: Any) -> tuple[np.ndarray, ...]:
        """Runs a kernel by canonical name on PyTorch's arguments."""
        return evaluate(name, {key: to_argument(value) for key, value in arguments.items()})

    @staticmethod
    def compare_run(name: str, want: list[torch.Tensor], /, **arguments: Any) -> None:
        """Runs a kernel by canonical name on PyTorch's arguments and compares its results."""
        compare(name, Eager.run(name, **arguments), want)

    @staticmethod
    def evaluate(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[np.ndarray, ...]:
        """Runs the kernel of `overload`."""
        return evaluate(canonical(overload), bind(overload, args, kwargs))

    @staticmethod
    def check(overload: Any, *args: Any, **kwargs: Any) -> None:
        """Calls one operator in eager mode and compares its kernel."""
        before = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        with torch.no_grad():
            results = overload(*args, **kwargs)
        check_call(overload, *before, results)


@pytest.fixture(scope="session")
def eager() -> type[Eager]:
    """Comparison with eager mode."""
    return Eager


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
