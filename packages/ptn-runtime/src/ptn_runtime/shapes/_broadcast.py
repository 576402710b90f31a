"""Broadcasting, axis numbers and the other arithmetic that many rules share."""

from __future__ import annotations

from collections.abc import Sequence

from ptn_runtime.shapes import Tensor

__all__ = [
    "broadcast",
    "broadcast_shapes",
    "check_window",
    "element_count",
    "normalize_axes",
    "normalize_axis",
    "per_axis",
    "require",
]

Shape = tuple[int, ...]


def require(condition: bool, reason: str) -> None:
    """Raises `ValueError(reason)` unless `condition` holds."""
    if not condition:
        raise ValueError(reason)


def element_count(shape: Sequence[int]) -> int:
    """Number of elements."""
    count = 1
    for size in shape:
        count *= size
    return count


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The common shape of `shapes`.

    Raises:
        ValueError: two of them do not broadcast.
    """
    result = shapes[0]
    for shape in shapes[1:]:
        if shape != result:
            result = _broadcast_two(result, shape, shapes)
    return result


def _broadcast_two(a: Shape, b: Shape, shapes: tuple[Shape, ...]) -> Shape:
    if len(a) < len(b):
        a, b = b, a
    sizes = list(a)
    offset = len(a) - len(b)
    for axis, size in enumerate(b, offset):
        if size != sizes[axis] and size != 1:
            if sizes[axis] != 1:
                listed = " and ".join(str(list(shape)) for shape in shapes)
                raise ValueError(f"shapes {listed} do not broadcast: sizes {sizes[axis]} and {size} meet on one axis")
            sizes[axis] = size
    return tuple(sizes)


def broadcast(*tensors: Tensor | object) -> Shape:
    """The common shape of the tensors among the arguments; Python numbers do not count."""
    shapes = [tensor.shape for tensor in tensors if hasattr(tensor, "shape")]
    return broadcast_shapes(*shapes) if shapes else ()


def normalize_axis(axis: int, rank: int) -> int:
    """The axis counted from the front; a 0-d tensor takes 0 and -1.

    Raises:
        ValueError: there is no such axis.
    """
    limit = rank or 1
    if not -limit <= axis < limit:
        raise ValueError(f"axis {axis} is out of range for {rank} axes; allowed {-limit}..{limit - 1}")
    return axis + limit if axis < 0 else axis


def normalize_axes(axes: int | Sequence[int] | None, rank: int, *, empty_is_all: bool = True) -> tuple[int, ...]:
    """The axes counted from the front, in the order given; None, and as a rule no axes, mean all.

    Raises:
        ValueError: there is no such axis, or one comes twice.
    """
    if axes is None:
        return tuple(range(rank))
    if isinstance(axes, int):
        axes = (axes,)
    if not axes and empty_is_all:
        return tuple(range(rank))
    result = tuple(normalize_axis(axis, rank) for axis in axes)
    if len(set(result)) != len(result):
        raise ValueError(f"an axis comes twice in {list(axes)}")
    return result


def per_axis(values: int | Sequence[int], count: int, name: str) -> tuple[int, ...]:
    """One value per spatial axis; a single one serves them all.

    Raises:
        ValueError: another number of values.
    """
    if isinstance(values, int):
        return (values,) * count
    if len(values) == 1:
        return (values[0],) * count
    if len(values) != count:
        raise ValueError(f"{name} takes 1 or {count} values, got {list(values)}")
    return tuple(values)


def check_window(shape: Sequence[int], size: Sequence[int], stride: Sequence[int], offset: int) -> None:
    """Checks that a window over the elements of a contiguous tensor of `shape` stays inside of it.

    Raises:
        ValueError: it does not, or it is none.
    """
    if len(size) != len(stride):
        raise ValueError(f"{len(size)} sizes and {len(stride)} strides")
    if min(size, default=0) < 0 or min(stride, default=0) < 0 or offset < 0:
        raise ValueError(
            f"sizes, strides and offset must not be negative, got {list(size)}, {list(stride)} and {offset}"
        )
    if element_count(size):
        last = offset + sum((one - 1) * step for one, step in zip(size, stride, strict=True))
        if last >= element_count(shape):
            raise ValueError(f"element {last} lies outside {list(shape)}")
