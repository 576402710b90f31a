"""How far an engine's results may be from the expected ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ptn_format.dtypes import ScalarType

from ptn_runtime.conformance.case import Array, Case

__all__ = ["difference", "differences", "tolerances"]

_RELATIVE = {
    ScalarType.FLOAT: 1.3e-6 * 8,
    ScalarType.DOUBLE: 1e-7,
    ScalarType.HALF: 1e-3,
    ScalarType.BFLOAT16: 1.6e-2,
}
_ABSOLUTE = {ScalarType.FLOAT: 1e-5, ScalarType.DOUBLE: 1e-7, ScalarType.HALF: 1e-3, ScalarType.BFLOAT16: 1e-2}


def tolerances(case: Case, dtype: ScalarType) -> tuple[float, float]:
    """Relative and absolute tolerance for results of `dtype`; 0 for integers and bools.

    The floats' figures are PyTorch's own defaults for comparing, with room for another order of summation.
    """
    relative = _RELATIVE.get(dtype, 0.0) if case.rtol is None else case.rtol
    absolute = _ABSOLUTE.get(dtype, 0.0) if case.atol is None else case.atol
    return relative, absolute


def _out_of_range(case: Case, found: Array) -> str | None:
    """What is wrong where the form is right and the values are free within a range."""
    if case.within is None:
        return None
    low, high = case.within
    wide = found.astype(np.float64)
    outside = ~((wide >= low) & (wide < high))
    return f"{np.count_nonzero(outside)} elements lie outside [{low:g}, {high:g})" if bool(outside.any()) else None


def differences(case: Case, found: Sequence[Array], expected: Sequence[Array]) -> list[str]:
    """What is wrong with the results of a case, a line for each that is wrong."""
    if len(found) != len(expected):
        return [f"{len(found)} results, expected {len(expected)}"]
    problems = (difference(case, ours, theirs, i) for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)))
    return [f"result {i}: {problem}" for i, problem in enumerate(problems) if problem]


def difference(case: Case, found: Array, expected: Array, index: int = 0) -> str | None:
    """What is wrong with a result, or None. NaN equals NaN, and infinities must agree in sign."""
    if found.dtype != expected.dtype:
        return f"dtype {found.dtype}, expected {expected.dtype}"
    if found.shape != expected.shape:
        return f"shape {list(found.shape)}, expected {list(expected.shape)}"
    if index in case.free_results:
        return None
    if case.compare == "form":
        return _out_of_range(case, found)
    if case.compare == "sorted values":
        found, expected = np.sort(found, axis=None), np.sort(expected, axis=None)
    dtype = ScalarType.from_numpy(expected.dtype)
    relative, absolute = tolerances(case, dtype)
    if dtype.is_floating_point:
        wide_found, wide_expected = found.astype(np.float64), expected.astype(np.float64)
        close = np.isclose(wide_found, wide_expected, rtol=relative, atol=absolute, equal_nan=True)
    else:
        close = np.asarray(found == expected)
    if bool(close.all()):
        return None
    place = tuple(int(i) for i in np.argwhere(~close)[0]) if found.ndim else ()
    wrong = int(close.size - np.count_nonzero(close))
    return (
        f"{wrong} of {close.size} elements differ (relative {relative:g}, absolute {absolute:g}); "
        f"at {list(place)}: {found[place]!r}, expected {expected[place]!r}"
    )
