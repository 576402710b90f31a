"""How far an engine's results may be from the expected ones."""

from __future__ import annotations

import numpy as np
from ptn_format.dtypes import ScalarType

from ptn_runtime.conformance.case import Array, Case

__all__ = ["difference", "tolerances"]

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


def difference(case: Case, found: Array, expected: Array) -> str | None:
    """What is wrong with a result, or None. NaN equals NaN, and infinities must agree in sign."""
    if found.dtype != expected.dtype:
        return f"dtype {found.dtype}, expected {expected.dtype}"
    if found.shape != expected.shape:
        return f"shape {list(found.shape)}, expected {list(expected.shape)}"
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
