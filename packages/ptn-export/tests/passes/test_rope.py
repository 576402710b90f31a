"""Rotary embeddings in several spellings become one operator; what only looks like one does not."""

import pytest
import torch
from torch import nn

ROPE = "native.rope.default"
B, H, T, D = 2, 3, 5, 8
X = torch.randn(B, H, T, D)
POSITIONS = torch.tensor([[3, 4, 5, 6, 7], [0, 1, 2, 3, 4]])


class Rotary(nn.Module):
    """`write(x, positions, frequencies)`; the frequencies are a buffer."""

    def __init__(self, write, width=D):
        super().__init__()
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(0, width, 2).float() / width), persistent=False)
        self.write = write

    def forward(self, x, positions):
        return self.write(x, positions, self.frequencies)


def angles(positions, frequencies):
    return positions[:, :, None].float() * frequencies


def tables(positions, frequencies, scale=1.0):
    """As in Hugging Face's models: a product of matrices."""
    columns = frequencies[None, :, None].float().expand(positions.shape[0], -1, 1)
    angle = (columns @ positions[:, None, :].float()).transpose(1, 2)
    both = torch.cat((angle, angle), -1)
    return (both.cos() * scale)[:, None], (both.sin() * scale)[:, None]


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def rotate_pairs(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def llama(x, positions, frequencies, scale=1.0):
    cos, sin = tables(positions, frequencies, scale)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return x * cos + rotate_half(x) * sin


def cohere(x, positions, frequencies):
    angle = angles(positions, frequencies).repeat_interleave(2, -1)[:, None]
    return x * angle.cos() + rotate_pairs(x) * angle.sin()


def gpt_oss(x, positions, frequencies):
    angle = angles(positions, frequencies)[:, None]
    first, second = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def pairs_in_two_sums(x, positions, frequencies):
    angle = angles(positions, frequencies)[:, None]
    even, odd = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


def heads_last(x, positions, frequencies):
    cos, sin = (table.transpose(1, 2) for table in tables(positions, frequencies))
    x = x.transpose(1, 2)
    return (x * cos + rotate_half(x) * sin).transpose(1, 2)


def partial(x, positions, frequencies):
    turned, rest = x[..., :D], x[..., D:]
    return torch.cat((llama(turned, positions, frequencies), rest), -1)


def partial_split(x, positions, frequencies):
    turned, rest = x.split([D, x.shape[-1] - D], -1)
    return torch.cat((cohere(turned, positions, frequencies), rest), -1)


def deepseek(x, positions, frequencies):
    """Turns neighbouring channels and leaves them as halves."""
    angle = angles(positions, frequencies)[:, None]
    first, second, cos, sin = x[..., 0::2], x[..., 1::2], angle.cos(), angle.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def deepseek_views(x, positions, frequencies):
    return llama(x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2), positions, frequencies)


def halves_to_pairs(x, positions, frequencies):
    angle = angles(positions, frequencies)[:, None]
    first, second = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)


def turned(x, factors):
    """As in Meta's models: pairs as complex numbers."""
    wide = x if x.dtype is torch.float64 else x.float()
    pairs = torch.view_as_complex(wide.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * factors).flatten(-2).type_as(x)


def complex_angles(x, positions, frequencies):
    angle = angles(positions, frequencies)[:, None]
    return turned(x, torch.polar(torch.ones_like(angle), angle))


SPELLINGS = {
    "llama": llama,
    "scaled": lambda x, p, f: llama(x, p, f, 1.25),
    "cohere": cohere,
    "gpt-oss": gpt_oss,
    "pairs in two sums": pairs_in_two_sums,
    "complex": complex_angles,
    "heads last": heads_last,
    "positions of the whole batch": lambda x, p, f: llama(x, p[:1], f),
    "flat positions": lambda x, p, f: llama(x, torch.arange(T)[None], f),
}


def arguments(native):
    (node,) = [n for n in native.program.methods[0].graph.nodes if n.target == f"torch.ops.{ROPE}"]
    return {item.name: item.arg for item in node.inputs}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(check_rewrite, operators, name):
    native = check_rewrite(Rotary(SPELLINGS[name]), (X, POSITIONS), expect={"rope": 1}, rtol=1e-4, atol=1e-5)
    assert operators(native)[ROPE] == 1
    assert not set(operators(native)) & {"aten.cos.default", "aten.sin.default", "aten.cat.default", "aten.mul.Tensor"}
    given = arguments(native)
    assert list(given) == ["input", "position_ids", "inv_freq", "interleaved", "attention_scale"]
    assert given["interleaved"].value is (name in ("cohere", "pairs in two sums", "complex"))
    assert given["attention_scale"].value == (1.25 if name == "scaled" else 1.0)


@pytest.mark.parametrize("write", [deepseek, deepseek_views])
def test_pairs_that_become_halves(check_rewrite, operators, write):
    native = check_rewrite(Rotary(write), (X, POSITIONS), expect={"rope": 1}, rtol=1e-4, atol=1e-5)
    assert operators(native)[ROPE] == 1
    assert not set(operators(native)) & {"aten.cos.default", "aten.sin.default", "aten.mul.Tensor"}
    assert arguments(native)["interleaved"].value is False


@pytest.mark.parametrize("write", [partial, partial_split])
def test_channels_that_are_passed_through(check_rewrite, operators, write):
    x = torch.randn(B, H, T, D + 4)
    native = check_rewrite(Rotary(write), (x, POSITIONS), expect={"rope": 1}, rtol=1e-4, atol=1e-5)
    assert operators(native) == {ROPE: 1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types(check_rewrite, operators, dtype):
    eps = torch.finfo(dtype).eps
    native = check_rewrite(Rotary(llama), (X.to(dtype), POSITIONS), expect={"rope": 1}, rtol=4 * eps, atol=4 * eps)
    assert operators(native) == {ROPE: 1}


def test_dynamic_sizes(check_rewrite):
    b, t = torch.export.Dim("b", min=1, max=8), torch.export.Dim("t", min=1, max=64)
    check_rewrite(
        Rotary(llama),
        (X, POSITIONS),
        (X[:1, :, :1], POSITIONS[:1, :1]),
        (torch.randn(3, H, 40, D), torch.arange(40).expand(3, 40).contiguous()),
        dynamic_shapes=({0: b, 2: t}, {0: b, 1: t}),
        expect={"rope": 1},
        rtol=1e-4,
        atol=1e-5,
    )


def test_shared_tables(check_rewrite, operators):
    def query_and_key(x, positions, frequencies):
        cos, sin = tables(positions, frequencies)
        key = x[:, :2] * 2
        return x * cos + rotate_half(x) * sin, key * cos + rotate_half(key) * sin, cos

    native = check_rewrite(Rotary(query_and_key), (X, POSITIONS), expect={"rope": 2}, rtol=1e-4, atol=1e-5)
    assert operators(native)["aten.cos.default"] == 1
    assert "aten.sin.default" not in operators(native)


def with_tables(change):
    def write(x, positions, frequencies):
        return change(x, *tables(positions, frequencies), positions, frequencies)

    return write


def half_angles(x, positions, frequencies):
    angle = (positions[:, :, None].to(x.dtype) * frequencies.to(x.dtype)).repeat(1, 1, 2)[:, None]
    return x * angle.cos() + rotate_half(x) * angle.sin()


def precomputed(x, positions, frequencies):
    angle = torch.arange(16).float()[:, None] * frequencies
    table = torch.cat((angle, angle), -1)[positions][:, None]
    return x * table.cos() + rotate_half(x) * table.sin()


NOT = {
    "only cos": with_tables(lambda x, cos, sin, p, f: x * cos + rotate_half(x) * cos),
    "exchanged": with_tables(lambda x, cos, sin, p, f: x * sin + rotate_half(x) * cos),
    "other scale of one": with_tables(lambda x, cos, sin, p, f: x * cos + rotate_half(x) * (sin * 1.1)),
    "other frequencies of one": with_tables(
        lambda x, cos, sin, p, f: x * cos + rotate_half(x) * tables(p, f.flip(0))[1]
    ),
    "no rotation": with_tables(lambda x, cos, sin, p, f: x * cos + x * sin),
    "other direction": with_tables(lambda x, cos, sin, p, f: x * cos - rotate_half(x) * sin),
    "pairs with tables of halves": with_tables(lambda x, cos, sin, p, f: x * cos + rotate_pairs(x) * sin),
    "halves that become pairs": halves_to_pairs,
    "a third term": with_tables(lambda x, cos, sin, p, f: x * cos + rotate_half(x) * sin + f.sum()),
    "other operand": with_tables(lambda x, cos, sin, p, f: x * cos + rotate_half(x.relu()) * sin),
    "precomputed": precomputed,
    "moved positions of one": with_tables(lambda x, cos, sin, p, f: x * cos + rotate_half(x) * tables(p + 1, f)[1]),
}


@pytest.mark.parametrize("name", NOT)
def test_what_is_not_rotary(check_rewrite, operators, name):
    native = check_rewrite(Rotary(NOT[name]), (X, POSITIONS), rtol=1e-4, atol=1e-5)
    if name == "a third term":  # beside the embedding
        assert operators(native)[ROPE] == 1
    else:
        assert ROPE not in operators(native)


def test_angles_in_half_stay(check_rewrite, operators):
    x = X.to(torch.bfloat16)
    native = check_rewrite(Rotary(half_angles), (x, POSITIONS), rtol=0.1, atol=0.1)
    assert ROPE not in operators(native)


# Stored tables


def complex_table(rows=64, width=D, dtype=torch.float32, scale=1.0):
    frequencies = 10000.0 ** (-torch.arange(0, width, 2).to(dtype) / width)
    angle = torch.outer(torch.arange(rows).to(dtype), frequencies)
    return torch.polar(torch.full_like(angle, scale), angle)


class Stored(nn.Module):
    """`write(x, *inputs, *tables)`; the tables are buffers."""

    def __init__(self, write, *tables):
        super().__init__()
        self.write = write
        for i, table in enumerate(tables):
            self.register_buffer(f"table_{i}", table)

    def forward(self, x, *inputs):
        return self.write(x, *inputs, *self.buffers())


def meta(query, key, table, start=0):
    """[B, T, H, D] each."""
    rows = table[start : start + query.shape[1]]
    rows = rows.view(1, query.shape[1], 1, rows.shape[-1])
    return turned(query, rows), turned(key, rows)


def halves(table):
    both = torch.cat((table, table), -1)
    return both.real.contiguous(), both.imag.contiguous()


def indexed(x, positions, cos, sin):
    cos, sin = cos[positions][:, None], sin[positions][:, None]
    return x * cos + rotate_half(x) * sin


def looked_up(x, positions, table):
    """Cosines and sines side by side in one table."""
    cos, sin = nn.functional.embedding(positions, table)[:, None].chunk(2, -1)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


QUERY, KEY = torch.randn(2, T, 4, D), torch.randn(2, T, 2, D)
TABLE = complex_table()


class Several(nn.Module):
    """Modules on the same inputs, because most of a test's time goes into the export."""

    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts.values())

    def forward(self, *args):
        return [part(*args) for part in self.parts]


OF_QUERY_AND_KEY = {
    "meta": Stored(meta, TABLE),
    "from a later row": Stored(lambda q, k, table: meta(q, k, table, 7), TABLE),
    "the whole table": Stored(meta, complex_table(T)),
    "scaled": Stored(meta, complex_table(scale=1.25)),
    "long": Stored(lambda q, k, table: meta(q, k, table, 8000), complex_table(8192)),
}
BY_POSITION = {
    "complex rows": Stored(lambda x, p, table: turned(x, table[p][:, None]), TABLE),
    "two tables": Stored(indexed, *halves(TABLE)),
    "one table of both": Stored(looked_up, torch.view_as_real(TABLE).transpose(1, 2).flatten(1)),
    "parts in the last axis": Stored(
        lambda x, p, table: turned(x, torch.view_as_complex(table[p])[:, None]), torch.view_as_real(TABLE)
    ),
}
TABLES = {
    "query and key": (OF_QUERY_AND_KEY, (QUERY, KEY), [True] * 10, 2e-6),
    "half": (OF_QUERY_AND_KEY, (QUERY.half(), KEY.half()), [True] * 10, 1e-3),
    "by position": (BY_POSITION, (X, POSITIONS), [True, False, True, True], 2e-6),
}


@pytest.mark.parametrize("name", TABLES)
def test_stored_tables(check_rewrite, operators, name):
    parts, inputs, interleaved, tolerance = TABLES[name]
    count = len(interleaved)
    native = check_rewrite(Several(parts), inputs, expect={"rope": count}, rtol=tolerance, atol=tolerance)
    nodes = [n for n in native.program.methods[0].graph.nodes if n.target == f"torch.ops.{ROPE}"]
    assert [next(i.arg.value for i in n.inputs if i.name == "interleaved") for n in nodes] == interleaved
    assert not set(operators(native)) & {"aten.mul.Tensor", "aten.cat.default"}
    # The tables are not needed any more.
    assert {constant.shape for constant in native.constants.values()} == {(D // 2,)}


def test_stored_tables_of_any_length(check_rewrite, operators):
    b, t = torch.export.Dim("b", min=1, max=4), torch.export.Dim("t", min=1, max=40)
    native = check_rewrite(
        Stored(lambda q, k, table: meta(q, k, table, 3), TABLE),
        (QUERY, KEY),
        (QUERY[:1, :1], KEY[:1, :1]),
        (torch.randn(3, 40, 4, D), torch.randn(3, 40, 2, D)),
        dynamic_shapes=({0: b, 1: t}, ({0: b, 1: t},)),
        expect={"rope": 2},
        rtol=1e-5,
        atol=2e-6,
    )
    (key,) = native.constants
    assert key.startswith("table_0.frequencies.folded_")
    assert "aten.mul.Tensor" not in operators(native)


def test_rows_from_a_position_that_is_read(check_rewrite):
    def write(query, key, start, table):
        first = start.item()
        torch._check(first >= 0)
        torch._check(first + query.shape[1] <= len(table))
        return meta(query, key, table, first)

    more = [(QUERY, KEY, torch.tensor(position)) for position in (0, 40)]
    module = Stored(write, TABLE)
    check_rewrite(module, (QUERY, KEY, torch.tensor(3)), *more, expect={"rope": 2}, rtol=1e-5, atol=2e-6)


def test_projections_that_become_pairs_at_once(check_rewrite, operators):
    """No tensor of heads and channels is left in between, where it is viewed as another one at once."""

    def project(x, weight, table):
        heads = nn.functional.linear(x, weight).view(2, -1, 4, D)
        return meta(heads, heads, table)[0], x.view(2, -1, 4, 4, 2)[..., 0] * 2

    t = torch.export.Dim("t", min=1, max=40)
    module = Stored(project, torch.randn(4 * D, 4 * D), TABLE)
    x = torch.randn(2, T, 4 * D)
    native = check_rewrite(
        module, (x,), (x[:, :1],), dynamic_shapes=({1: t},), expect={"rope": 1}, rtol=1e-5, atol=1e-5
    )
    # One view before the embedding, one of the other tensor.
    assert operators(native)["aten.view_copy.default"] == 2


def changed(table, row, column, by):
    table = table.clone()
    table[row, column] *= by
    return table


OTHER_TABLES = {
    "one number off": (meta, changed(TABLE, 40, 1, 1.0001)),
    "not one circle": (meta, changed(TABLE, 0, 1, 2.0)),
    "backwards": (meta, TABLE.flip(0)),
    "angles that grow otherwise": (meta, torch.polar(torch.ones(64, 4), torch.arange(64.0)[:, None].sqrt() * 0.1)),
    "only cosines": (lambda q, k, table: (turned(q, table.real[:T, None]), k), TABLE),
    "other direction": (lambda q, k, table: meta(q, k, table.conj()), TABLE),
    "halves with pairs of a complex table": (
        lambda q, k, table: (
            q * torch.cat((table.real, table.real), -1)[:T, None] + rotate_pairs(q) * table.imag.repeat(1, 2)[:T, None],
            k,
        ),
        TABLE,
    ),
}


def test_other_tables(check_rewrite):
    module = Several({name: Stored(*parts) for name, parts in OTHER_TABLES.items()})
    check_rewrite(module, (QUERY, KEY), expect={"rope": 0}, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("write", [meta, lambda q, k, table: meta(q.float(), k.float(), table)])
def test_double_precision_stays(check_rewrite, write):
    """The operator's angles are float32."""
    module = Stored(write, complex_table(dtype=torch.float64))
    check_rewrite(module, (QUERY.double(), KEY.double()), expect={"rope": 0}, rtol=1e-12, atol=1e-12)


def test_a_table_that_changes_is_none(check):
    class Changing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", TABLE.clone())

        def forward(self, query, key):
            result = meta(query, key, self.table)
            self.table.mul_(2)
            return result

    native = check(Changing(), (QUERY, KEY), (QUERY, KEY), rtol=1e-4, atol=1e-5)
    assert native.rewrites["forward"].get("rope", 0) == 0
