"""What goes in and comes out: structure, names, mutations, constants."""

import collections
import dataclasses

import pytest
import torch
from ptn_export import to_native
from ptn_format.graph import OutputKind
from ptn_format.signature import SIGNATURE_KEY, Constant, Signature
from torch import nn
from torch.utils import _pytree as pytree


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


torch.export.register_dataclass(Pair, serialized_type_name="test_results_and_signature.Pair")
Point = collections.namedtuple("Point", ["x", "y"])
Renamed = collections.namedtuple("Renamed", ["first", "class"], rename=True)


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("buffer", torch.tensor([3.0, 4.0]))
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def signature(native, method=0):
    return Signature.from_json(native.program.methods[method].graph.nodes[-1].metadata[SIGNATURE_KEY])


RESULTS = {
    "single": lambda m, x: x + 1,
    "tuple": lambda m, x: (x + 1, x + 2),
    "list": lambda m, x: [x + 1, x + 2],
    "dict": lambda m, x: {"b": x + 1, "a": x + 2},
    "nested": lambda m, x: {"a": [x + 1, (x + 2, {"b": x + 3})], "c": ()},
    "namedtuple": lambda m, x: Point(x + 1, x + 2),
    "none": lambda m, x: (None, x + 1, None),
    "numbers": lambda m, x: (1, x + 1, 2.5, True),
    "string": lambda m, x: ("label", x + 1),
    "pass through": lambda m, x: x,
    "pass through twice": lambda m, x: (x, x, x + 1),
    "duplicates": lambda m, x: (lambda y: (y, y, x, y))(x + 1),
    "constant": lambda m, x: (torch.tensor([1.0, 2.0]), x),
    "parameter": lambda m, x: (m.weight, x),
    "buffer": lambda m, x: (m.buffer, m.buffer, x + m.weight),
    "nothing but a constant": lambda m, x: torch.ones(2),
    "nothing but numbers": lambda m, x: (3, None),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results(check, name):
    native = check(Call(RESULTS[name]), (torch.tensor([5.0, 6.0]),))
    assert len(native.program.methods[0].graph.inputs) == 1  # used or not


def test_numbers_that_are_read_from_data(check):
    """An item of a tensor, and what is computed from it, is a Python number to the caller as in eager mode."""

    class Model(nn.Module):
        def forward(self, x, n, r):
            count, rate = n.item(), r.item()
            return x * count, count, {"next": count + 1, "half": count / 2}, [rate, -rate, count > 3, rate * count]

    calls = [(torch.ones(2), torch.tensor(n), torch.tensor([r])) for n, r in ((3, 0.5), (-4, 2.5))]
    check(Model(), *calls)


def test_registered_classes_are_objects(check):
    class Model(nn.Module):
        def forward(self, pair: Pair):
            return Pair(pair.left + pair.right, pair.left)

    native = check(Model(), (Pair(torch.ones(2), torch.ones(2)),))
    assert [line.name for line in native.report.methods[0].inputs] == ["pair.left", "pair.right"]
    result = signature(native).result
    assert (result.kind, result.keys, result.type_name) == ("object", ("left", "right"), "Pair")


class Attributes:
    def __init__(self, left, right):
        self.left, self.right = left, right
        self.count = 1

    def children(self):
        return [self.left, self.right]


class Slots(Attributes):
    __slots__ = ("left", "right")


class Keys(dict):
    """What model libraries return: a dict that is more than one."""

    def __init__(self, left, right):
        super().__init__(left=left, right=right)

    def children(self):
        return list(self.values())


class Sum(Attributes):
    """Keeps none of what it is made of."""

    def __init__(self, left, right):
        super().__init__(left + 0, right + 0)


NAMES_OF_CLASSES = {Attributes: ("left", "right"), Slots: ("left", "right"), Keys: ("left", "right"), Sum: ("0", "1")}


@pytest.fixture(params=NAMES_OF_CLASSES, ids=lambda cls: cls.__name__)
def unnamed(request):
    """A class that is registered as a pytree without names of its children."""
    cls = request.param
    pytree.register_pytree_node(
        cls, lambda value: (value.children(), None), lambda children, _: cls(*children), serialized_type_name=None
    )
    yield cls
    pytree._deregister_pytree_node(cls)


def test_a_class_that_is_registered_without_names_has_those_of_its_attributes(unnamed):
    exported = torch.export.export(Call(lambda m, x: unnamed(x + 1, x + 2)), (torch.ones(2),))
    result = signature(to_native(exported)).result
    assert (result.kind, result.keys, result.type_name) == ("object", NAMES_OF_CLASSES[unnamed], unnamed.__name__)


def test_a_namedtuple_with_made_up_fields_is_an_object(check):
    class Model(nn.Module):
        def forward(self, x):
            return Renamed(x + 1, x + 2)

    result = signature(check(Model(), (torch.ones(2),))).result
    assert (result.kind, result.keys, result.type_name) == ("object", ("first", "_1"), "Renamed")


class Many(nn.Module):
    def forward(self, ids, batch, *rest, flag=True, count=3, scale=None, options=None):
        y = ids * count + batch["a"][0] - batch["b"]
        for item in rest:
            y = y + item
        return y if flag else -y, options["deep"][1] if options else None


def test_names_of_parameters_and_fixed_values(check):
    x = [torch.randn(2) for _ in range(6)]
    args = (x[0], {"a": (x[1],), "b": x[2]}, x[3], x[4])
    kwargs = {"count": 4, "flag": False, "options": {"deep": [x[5], x[5] + 1]}}
    native = check(Many(), args, kwargs=kwargs)
    names = [line.name for line in native.report.methods[0].inputs]
    assert names == ["ids", "batch.a[0]", "batch.b", "rest_0", "rest_1", "options.deep[0]", "options.deep[1]"]
    parameters = {parameter.name: parameter for parameter in signature(native).parameters}
    assert parameters["count"].tree == Constant(4)
    assert parameters["flag"].tree == Constant(value=False)
    assert [p.name for p in parameters.values() if p.keyword_only] == ["count", "flag", "options"]


def test_none_as_an_input(check):
    class Model(nn.Module):
        def forward(self, x, mask=None):
            return x if mask is None else x * mask

    native = check(Model(), (torch.ones(2), None))
    assert signature(native).parameters[1].tree == Constant(None)


class Mutating(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.ones(2))
        self.register_buffer("last", torch.ones(2))

    def forward(self, x, y):
        y.mul_(2)
        self.total.add_(x)
        self.last.copy_(x)
        x[0] = 7
        return x + y, self.total, self.last


def test_mutations_come_first_and_reach_their_targets(check):
    calls = [(torch.randn(2), torch.randn(2)) for _ in range(3)]
    native = check(Mutating(), *calls)
    specs = native.program.methods[0].output_specs
    assert [(spec.kind, spec.target) for spec in specs if spec.kind is not OutputKind.USER_OUTPUT] == [
        (OutputKind.BUFFER_MUTATION, "total"),
        (OutputKind.BUFFER_MUTATION, "last"),
        (OutputKind.USER_INPUT_MUTATION, "x"),
        (OutputKind.USER_INPUT_MUTATION, "y"),
    ]
    assert [line.mutated for line in native.report.methods[0].inputs] == [True, True]
    assert len(specs) == len(native.program.methods[0].graph.outputs)


def test_a_buffer_that_is_only_written(check):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", torch.ones(2))

        def forward(self, x):
            self.last.copy_(x)
            return x + 1

    native = check(Model(), (torch.randn(2),), (torch.randn(2),))
    assert native.report.methods[0].state == ("last",)


def test_the_graph_names_results_like_their_consumers(check):
    class Model(nn.Module):
        def forward(self, x):
            a, _, b = x.split([1, 2, 3], 1)
            return a + 1, b * 2

    native = check(Model(), (torch.randn(2, 6),))
    (split,) = [
        n for n in native.program.methods[0].graph.nodes if (n.target or "").endswith("split_with_sizes_copy.default")
    ]
    (output,) = split.outputs
    assert output.name == ""
    assert len(set(output.names)) == 3
