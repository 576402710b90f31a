"""Fuses rotary embeddings into `native.rope`.

A rotary embedding costs some fifteen operators per layer and operand, most of them copies; engines have one kernel.
Models spell it in many ways: halves or neighbouring channels as pairs, one sum over the whole width or two over its
halves, heads in front of or behind positions, tables built by a product or a matmul. So the spelling is not matched. A
candidate is any subgraph of element-wise arithmetic and layout operators whose only sources are one tensor of the
result's shape, integer positions, and a vector of frequencies, with sines and cosines of float32 angles in between. It
is then run in float64 on random data: the sources and operators allowed make it a fixed bilinear function of the tensor
and the tables, so it is the embedding if and, but for chance, only if it agrees with the operator's definition there.
Tables that are stored, as sines and cosines or as complex numbers, are sources too: frequencies are read off them, and
must give every row of them again (`_rope_tables.py`). Angles computed in a half type are left alone. Channels that are
passed through are taken in afterwards. DeepSeek turns neighbouring channels and leaves them as halves: that is the
operator behind a permutation of channels.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ptn_export.dims import expression_of
from ptn_export.passes._graph import (
    Context,
    argument,
    has_value_type,
    insert,
    is_call,
    operand,
    operands,
    place,
    replace,
    shape_of,
    tensor_of,
)
from ptn_export.passes._rope_tables import Rows, Tables
from ptn_export.rope_operator import rope, rope_operator

__all__ = ["run"]

_aten = torch.ops.aten
_ROOTS = frozenset({_aten.add.Tensor, _aten.cat.default, _aten.view.default, _aten.reshape.default})
_WAVES = frozenset({_aten.cos.default, _aten.sin.default})
_LAYOUT = frozenset(
    {
        _aten._unsafe_view.default,
        _aten.cat.default,
        _aten.clone.default,
        _aten.expand.default,
        _aten.permute.default,
        _aten.reshape.default,
        _aten.select.int,
        _aten.slice.Tensor,
        _aten.split.Tensor,
        _aten.split_with_sizes.default,
        _aten.squeeze.dims,
        _aten.transpose.int,
        _aten.unsqueeze.default,
        _aten.view.default,
        operator.getitem,
    }
)
_ARITHMETIC = frozenset(
    {
        _aten._to_copy.default,
        _aten.add.Tensor,
        _aten.mul.Scalar,
        _aten.mul.Tensor,
        _aten.neg.default,
        _aten.sub.Tensor,
    }
)
_PRODUCTS = frozenset({_aten.bmm.default, _aten.matmul.default, _aten.mm.default})
_INSIDE = _WAVES | _LAYOUT | _ARITHMETIC | _PRODUCTS
_VIEWS = (_aten.view.default, _aten._unsafe_view.default)
_DEPTH = 9
"""How many operators lie between the result and the tensor that is rotated, at most."""
_END = 2**63 - 1
"""Slices that end there take the rest."""
_SAMPLE = 7
"""Stand-in for the first symbolic size; further ones take the next primes."""


@dataclass(frozen=True, slots=True)
class _Rotary:
    """A candidate: its result and its sources.

    Attributes:
        root: the result.
        x: the tensor that is rotated.
        positions: integers; None where rows of stored tables are read instead.
        frequencies: angles per position; None likewise.
        rows: the rows of stored tables, all of the same positions.
    """

    root: fx.Node
    x: fx.Node
    positions: fx.Node | None
    frequencies: fx.Node | None
    rows: tuple[Rows, ...] = ()

    @property
    def sources(self) -> list[fx.Node]:
        nodes = (self.x, self.positions, self.frequencies, *(item.node for item in self.rows))
        return [node for node in nodes if node is not None]


@dataclass(frozen=True, slots=True)
class _Form:
    """How a rotary embedding differs from the plain operator.

    Attributes:
        swapped: heads come last but one, behind the positions.
        interleaved: channels 2i and 2i + 1 are a pair.
        scale: factor of sine and cosine.
        regrouped: pairs are neighbours in the tensor, and lie in two halves in the result.
    """

    swapped: bool
    interleaved: bool
    scale: float
    regrouped: bool = False


def run(module: fx.GraphModule, context: Context) -> None:
    """Fuses every rotary embedding of `module`."""
    tables = Tables(module, context)
    if not tables and not any(is_call(node, _aten.cos.default) for node in module.graph.nodes):
        return
    for node in list(module.graph.nodes):
        _show_channels(node)
    forms: dict[Hashable, _Form | None] = {}  # layers repeat one spelling, and large examples take time
    for node in reversed(list(module.graph.nodes)):
        # From the end, so that the largest of nested candidates comes first.
        value = tensor_of(node)
        if value is None or value.dim() != 4 or not value.is_floating_point() or not is_call(node, *_ROOTS):
            continue
        if any(_fuse(candidate, forms, tables, context) for candidate in _candidates(node, tables)):
            module.graph.eliminate_dead_code()
    for node in list(module.graph.nodes):
        if is_call(node, _aten.cat.default):
            _take_in_rest(node)


def _show_channels(node: fx.Node) -> None:
    """Splits a view that makes heads and pairs of channels at once, so that there is a tensor of heads and channels.

    Where the embedding is not found, `views` makes one of both again.
    """
    value = tensor_of(node)
    if not is_call(node, *_VIEWS) or value is None or value.dim() != 5 or not value.is_floating_point():
        return
    sizes, source = operand(node, 1), operand(node, 0)
    *outer, first, second = shape_of(node)
    if not isinstance(first, int) or not isinstance(second, int) or 2 not in (first, second):
        return
    if len(shape_of(source)) == 4 or not all(is_call(user, _aten.select.int) for user in node.users):
        return
    channels = value.new_empty((*outer, first * second))
    between = place(node, channels, _aten.view.default, source, [*sizes[:-2], first * second])
    node.replace_input_with(source, between)
    node.args = (between, [*sizes[:-2], first, second])


# Candidates


def _candidates(root: fx.Node, tables: Tables) -> Iterator[_Rotary]:
    """Subgraphs that end in `root` and have the right sources."""
    seen, layer = {root}, [root]
    for _ in range(_DEPTH):
        layer = [source for node in layer if is_call(node, *_INSIDE) for source in node.all_input_nodes]
        layer = [node for node in dict.fromkeys(layer) if node not in seen and len(shape_of(node)) >= 1]
        seen.update(layer)
        for node in layer:
            if has_value_type(node, root):
                candidate = _candidate(root, node, tables)
                if candidate is not None:
                    yield candidate


def _candidate(root: fx.Node, x: fx.Node, tables: Tables) -> _Rotary | None:
    """The subgraph between `x` and `root`, where it has the sources of an embedding and no other."""
    positions: set[fx.Node] = set()
    frequencies: set[fx.Node] = set()
    rows: list[Rows] = []
    waves = set()
    seen = {x}
    stack = [(root, False)]
    while stack:
        node, inside = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        value = tensor_of(node)
        found = tables.rows(node)
        if found is not None and not inside:
            rows.append(found)
            continue
        if value is None:
            if node.target is not operator.getitem and not isinstance(node.meta.get("val"), list | tuple):
                if expression_of(node.meta.get("val")) is None:
                    return None
                continue  # a size
        elif not value.is_floating_point():
            if not (is_call(node, _aten.unsqueeze.default, _aten.expand.default) and value.dim() > 2):
                if value.dtype not in (torch.int64, torch.int32):
                    return None
                positions.add(node)
                continue
        elif value.dim() == 1 and not _is_cast_of_integers(node):
            frequencies.add(node)
            continue
        elif (inside and value.dtype is not torch.float32) or (not inside and _is_narrower(value, root)):
            return None
        if not is_call(node, *_INSIDE):
            return None
        if node.target in _WAVES:
            waves.add(node.target)
            inside = True
        if node.target in _PRODUCTS and not inside:
            return None
        stack += [(source, inside) for source in node.all_input_nodes]
    if rows and not positions and not frequencies and not waves and tables.agree(rows):
        return _Rotary(root, x, None, None, tuple(rows))
    if rows or len(positions) != 1 or len(frequencies) != 1 or waves != _WAVES:
        return None
    return _Rotary(root, x, positions.pop(), frequencies.pop())


def _is_narrower(value: torch.Tensor, root: fx.Node) -> bool:
    """Whether a value between `x` and `root` has lost digits that they have."""
    result = tensor_of(root)
    assert result is not None
    return value.dtype != result.dtype and value.dtype.itemsize <= result.dtype.itemsize


def _is_cast_of_integers(node: fx.Node) -> bool:
    if not is_call(node, _aten._to_copy.default):
        return False
    source = tensor_of(operand(node, 0))
    return source is not None and not source.is_floating_point()


# Proof and rewriting


def _fuse(candidate: _Rotary, forms: dict[Hashable, _Form | None], tables: Tables, context: Context) -> bool:
    """Puts the operator in the place of the candidate, if it is a rotary embedding."""
    spelling = _spelling(candidate)
    if spelling not in forms:
        forms[spelling] = _form(candidate, tables)
    form = forms[spelling]
    if form is None:
        return False
    root, x = candidate.root, candidate.x
    positions, frequencies = candidate.positions, candidate.frequencies
    if positions is None or frequencies is None:
        width = shape_of(x)[-1]
        positions = tables.positions(candidate.rows, x, 1 if form.swapped else 2, root)
        frequencies = tables.frequencies(candidate.rows, width)
        assert frequencies is not None
    if len(shape_of(positions)) == 1:
        positions = insert(root, _aten.unsqueeze.default, positions, 0)
    if form.regrouped:
        halves = [insert(root, _aten.slice.Tensor, x, 3, first, _END, 2) for first in (0, 1)]
        x = insert(root, _aten.cat.default, halves, 3)
    if form.swapped:
        x = insert(root, _aten.permute.default, x, [0, 2, 1, 3])
    result = insert(root, rope_operator(), x, positions, frequencies, form.interleaved, form.scale)
    if form.swapped:
        result = insert(root, _aten.permute.default, result, [0, 2, 1, 3])
    replace(root, result)
    context.counts["rope"] += 1
    return True


def _spelling(candidate: _Rotary) -> Hashable:
    """The subgraph with numbers in the place of nodes: equal for candidates that compute the same."""
    numbers: dict[fx.Node, int] = {}
    calls: list[Hashable] = [item.key for item in candidate.rows]
    sources = candidate.sources

    def visit(item: Any) -> Hashable:
        if isinstance(item, list | tuple):
            return tuple(map(visit, item))
        if not isinstance(item, fx.Node):
            return repr(item)
        if item not in numbers:
            is_source = item in sources
            value = item.meta.get("val")
            if is_source or expression_of(value) is not None:
                call: Hashable = ("source", str(shape_of(item)), str(value) if not is_source else "")
            else:
                call = (item.target, visit(item.args), str(item.kwargs))
            numbers[item] = len(numbers)
            calls.append(call)
        return ("node", numbers[item])

    return (visit(sources), visit(candidate.root), *calls)


def _form(candidate: _Rotary, tables: Tables) -> _Form | None:
    """The form of the embedding; None if the candidate is something else."""
    sizes: dict[Any, int] = {}
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_sizes(candidate.x, sizes), generator=generator, dtype=torch.float64)
    if not x.numel():
        return None
    if candidate.rows:
        first = candidate.rows[0]
        shape = [_size(size, sizes) for size in first.shape]
        if tables.frequencies(candidate.rows, x.shape[-1]) is None:
            return None
        count = x.shape[-1] // 2
    else:
        assert candidate.positions is not None
        assert candidate.frequencies is not None
        shape = _sizes(candidate.positions, sizes)
        (count,) = _sizes(candidate.frequencies, sizes)
        if 2 * count != x.shape[-1]:
            return None
    positions = torch.randint(0, 50, shape, generator=generator)
    frequencies = torch.rand(count, generator=generator, dtype=torch.float64)

    def actual(positions: torch.Tensor) -> torch.Tensor:
        known: dict[fx.Node, Any] = {candidate.x: x}
        if candidate.rows:
            known |= tables.stand_ins(candidate.rows, positions, frequencies)
        else:
            assert candidate.positions is not None
            assert candidate.frequencies is not None
            known |= {candidate.positions: positions, candidate.frequencies: frequencies}
        result: torch.Tensor = _evaluate(candidate.root, known, sizes)
        return result

    try:
        # At position 0 nothing turns, so what is left is the scale.
        scale = float(actual(positions * 0).norm() / x.norm())
        result = actual(positions)
    except (RuntimeError, IndexError):
        return None  # the stand-in sizes do not fit together
    if scale == 0:
        return None
    rows = positions if positions.dim() == 2 else positions[None]
    for swapped, regrouped in itertools.product((False, True), repeat=2):
        turned = torch.cat((x[..., ::2], x[..., 1::2]), -1) if regrouped else x
        turned = turned.transpose(1, 2) if swapped else turned
        if rows.dim() != 2 or rows.shape[0] not in (1, turned.shape[0]) or rows.shape[1] != turned.shape[2]:
            continue
        for interleaved in (False,) if regrouped else (False, True):
            expected = rope(turned, rows, frequencies, interleaved, scale)
            expected = expected.transpose(1, 2) if swapped else expected
            if torch.allclose(result, expected, rtol=1e-9, atol=1e-9):
                return _Form(swapped, interleaved, round(scale, 12), regrouped)
    return None


def _sizes(node: fx.Node, known: dict[Any, int]) -> list[int]:
    return [_size(size, known) for size in shape_of(node)]


def _size(size: Any, known: dict[Any, int]) -> int:
    """A size with small numbers in the place of symbols."""
    expression = expression_of(size)
    if expression is None:
        return int(size)
    for symbol in sorted(expression.free_symbols, key=str):
        known.setdefault(symbol, (_SAMPLE, 11, 13, 17, 19)[len(known) % 5])
    return int(expression.subs(known))


def _evaluate(node: Any, known: dict[fx.Node, Any], sizes: dict[Any, int]) -> Any:
    """The value of a node in float64, given the values of the sources."""
    if isinstance(node, list | tuple):
        return [_evaluate(item, known, sizes) for item in node]
    if not isinstance(node, fx.Node):
        return node
    if node not in known:
        value = node.meta.get("val")
        if expression_of(value) is not None:
            known[node] = _size(value, sizes)
        elif is_call(node, _aten._to_copy.default):
            known[node] = _evaluate(operand(node, 0), known, sizes).to(torch.float64)
        else:
            arguments = [_evaluate(item, known, sizes) for item in operands(node)]
            # Memory is laid out otherwise than in the graph, where copies have been dropped.
            target: Any = _aten.reshape.default if node.target in _VIEWS else node.target
            known[node] = target(*arguments, **node.kwargs)
    return known[node]


def _take_in_rest(node: fx.Node) -> None:
    """Lets the operator pass channels through itself: cat(rope(x[..., :r]), x[..., r:]) -> rope(x)."""
    parts, last = operand(node, 0), len(shape_of(node)) - 1
    if not isinstance(parts, list | tuple) or len(parts) != 2 or argument(node, "dim") not in (-1, last):
        return
    turned, rest = parts
    if not is_call(turned, rope_operator()):
        return
    x, width = operand(turned, 0), shape_of(turned)[-1]
    source = operand(x, 0) if is_call(x, _aten.slice.Tensor, operator.getitem) else None
    if source is None or not _is_part(x, 0, width) or not is_call(rest, x.target) or operand(rest, 0) is not source:
        return
    if is_call(x, operator.getitem):
        source = operand(source, 0)
    total = shape_of(source)[-1]
    if _is_part(rest, width, total) and has_value_type(source, node):
        replace(node, insert(node, rope_operator(), source, *operands(turned)[1:]))


def _is_part(node: fx.Node, start: int, end: Any) -> bool:
    """Whether `node` shows exactly the channels from `start` to `end` of its source."""
    if is_call(node, operator.getitem):
        split, index = operands(node)
        if not is_call(split, _aten.split_with_sizes.default):
            return False
        assert isinstance(split, fx.Node)
        assert isinstance(index, int)
        lengths: Any = argument(split, "split_sizes")
        on_last = argument(split, "dim") in (-1, len(shape_of(operand(split, 0))) - 1)
        return on_last and len(lengths) == 2 and sum(lengths[:index]) == start and sum(lengths[: index + 1]) == end
    dim, first, stop, step = (argument(node, name) for name in ("dim", "start", "end", "step"))
    if dim not in (-1, len(shape_of(node)) - 1) or step != 1 or not isinstance(end, int):
        return False
    return (first or 0) == start and (stop is None or min(stop, shape_of(operand(node, 0))[-1]) == end)
