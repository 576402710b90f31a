"""The user's calling convention, kept in node metadata.

A graph takes and gives flat lists of tensors. What the user wrote (names, keyword arguments, nested tuples and
dicts) is kept as a `Signature`: as JSON in the metadata of the output node under `SIGNATURE_KEY`, and as a plain
name in the metadata of each user-input placeholder under `NAME_KEY`. Readers that know neither key lose only
the convenience; a file without them gets `Signature.flat`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from ptn_format.errors import SignatureError

__all__ = [
    "NAME_KEY",
    "SIGNATURE_KEY",
    "SOURCE_KEY",
    "Constant",
    "Container",
    "Leaf",
    "Parameter",
    "Signature",
    "Tree",
]

NAME_KEY = "ptn.name"
"""Metadata key of a user-input placeholder: the leaf's name for people, such as `batch.ids`."""
SIGNATURE_KEY = "ptn.signature"
"""Metadata key of the output node: the JSON text of the method's `Signature`."""
SOURCE_KEY = "ptn.source"
"""Metadata key of any node: the line and the module of the user's code that made it, such as
`model.py:12 in layers.3.attention`, or `model.py:12` alone."""

Scalar = None | bool | int | float | str
_KINDS = ("tuple", "list", "dict", "namedtuple", "object")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A place of the flat list.

    Attributes:
        index: for inputs, position in `Graph.inputs`; for outputs, position among the arguments of the output
            node that are not mutations.
    """

    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that was fixed at export: `None`, a number or a string."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class Container:
    """A pytree node.

    Attributes:
        kind: `tuple`, `list`, `dict`, `namedtuple` or `object` (a registered class; it is given back as a dict).
        items: the children.
        keys: for `dict`, `namedtuple` and `object` one key per child, else empty.
        type_name: the class name of a `namedtuple` or `object`.
    """

    kind: str
    items: tuple[Tree, ...]
    keys: tuple[str | int, ...] = ()
    type_name: str = ""


Tree = Leaf | Constant | Container


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the exported function."""

    name: str
    tree: Tree
    keyword_only: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters and result structure of one method."""

    parameters: tuple[Parameter, ...]
    result: Tree

    @classmethod
    def flat(cls, input_names: Sequence[str], num_results: int) -> Signature:
        """The signature of a file that has none: one parameter per input, one result or a flat tuple."""
        parameters = tuple(Parameter(name, Leaf(i)) for i, name in enumerate(input_names))
        leaves = tuple(Leaf(i) for i in range(num_results))
        return cls(parameters, leaves[0] if num_results == 1 else Container("tuple", leaves))

    def to_json(self) -> str:
        """The compact JSON text that the file keeps."""
        parameters = [[p.name, _tree_to_json(p.tree), *([True] if p.keyword_only else [])] for p in self.parameters]
        document = {"parameters": parameters, "result": _tree_to_json(self.result)}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Signature:
        """Reads `to_json`'s text.

        Raises:
            SignatureError: the text is not a signature.
        """
        try:
            return _signature_from_json(json.loads(text))
        except RecursionError:
            reason = "it is nested too deeply"
        except (ValueError, TypeError) as error:
            reason = str(error)
        raise SignatureError(
            f"the method's signature is damaged: {reason}. Export the model again; a file whose output node has no "
            f"'{SIGNATURE_KEY}' works too, with flat inputs and results"
        )


def leaves(tree: Tree) -> Iterator[Leaf]:
    """The leaves of `tree` from left to right."""
    if isinstance(tree, Leaf):
        yield tree
    elif isinstance(tree, Container):
        for item in tree.items:
            yield from leaves(item)


def named_leaves(name: str, tree: Tree) -> Iterator[tuple[str, Leaf]]:
    """Each leaf of `tree` with a name for people: `batch.ids`, `states[0]`."""
    if isinstance(tree, Leaf):
        yield name, tree
    elif isinstance(tree, Container):
        for i, item in enumerate(tree.items):
            key = tree.keys[i] if tree.keys else i
            dotted = isinstance(key, str) and key.isidentifier()
            yield from named_leaves(f"{name}.{key}" if dotted else f"{name}[{key!r}]", item)


def build(tree: Tree, value_of: Callable[[int], Any]) -> Any:
    """Puts values into the structure of `tree`: `value_of(leaf index)` gives each leaf's value.

    A `namedtuple` becomes a `collections.namedtuple` of the same name and fields, an `object` a dict.
    """
    if isinstance(tree, Leaf):
        return value_of(tree.index)
    if isinstance(tree, Constant):
        return tree.value
    items = [build(item, value_of) for item in tree.items]
    if tree.kind == "tuple":
        return tuple(items)
    if tree.kind == "list":
        return items
    if tree.kind == "namedtuple":
        from collections import namedtuple  # rare; kept off the import path

        return namedtuple(tree.type_name, [str(k) for k in tree.keys])(*items)
    return dict(zip(tree.keys, items, strict=True))


def _tree_to_json(tree: Tree) -> Any:
    if isinstance(tree, Leaf):
        return tree.index
    if isinstance(tree, Constant):
        return {"constant": tree.value}
    document: dict[str, Any] = {tree.kind: [_tree_to_json(item) for item in tree.items]}
    if tree.keys:
        document["keys"] = list(tree.keys)
    if tree.type_name:
        document["type"] = tree.type_name
    return document


def _signature_from_json(document: Any) -> Signature:
    if not isinstance(document, dict) or not {"parameters", "result"} <= document.keys():
        raise TypeError(f"expected an object with 'parameters' and 'result', found {_short(document)}")
    parameters = []
    for row in _list(document["parameters"]):
        if not isinstance(row, list) or len(row) not in (2, 3):
            raise TypeError(f"expected [name, tree] or [name, tree, true] for a parameter, found {_short(row)}")
        parameters.append(Parameter(_text(row[0]), _tree_from_json(row[1]), len(row) == 3 and row[2] is True))
    names = [parameter.name for parameter in parameters]
    if len(set(names)) != len(names):
        raise ValueError(f"two parameters have one name: {_short(names)}")
    return Signature(tuple(parameters), _tree_from_json(document["result"]))


def _tree_from_json(document: Any) -> Tree:
    if isinstance(document, int) and not isinstance(document, bool):
        if document < 0:
            raise ValueError(f"leaf index {document} is negative")
        return Leaf(document)
    if not isinstance(document, dict):
        raise TypeError(f"expected a leaf index or an object, found {_short(document)}")
    if "constant" in document:
        value = document["constant"]
        if not isinstance(value, Scalar):
            raise TypeError(f"expected a number, a string or null, found {_short(value)}")
        return Constant(value)
    for kind in _KINDS:
        if kind in document:
            return _container_from_json(kind, document)
    raise ValueError(f"unknown container {_short(sorted(document))}")


def _container_from_json(kind: str, document: Mapping[str, Any]) -> Container:
    items = tuple(_tree_from_json(item) for item in _list(document[kind]))
    keys = tuple(_key(key) for key in _list(document.get("keys", [])))
    type_name = _text(document.get("type", ""))
    if len(keys) != (0 if kind in ("tuple", "list") else len(items)):
        raise ValueError(f"a {kind} of {len(items)} items has {len(keys)} keys")
    if len(set(keys)) != len(keys):
        raise ValueError(f"a {kind} has a key twice: {_short(keys)}")
    if kind == "namedtuple":  # it is made as a Python class, so Python's rules for names hold
        for name in (type_name, *keys):
            if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
                raise ValueError(f"a namedtuple cannot use the name {_short(name)}")
        if any(str(key).startswith("_") for key in keys):
            raise ValueError(f"a namedtuple's fields cannot start with an underscore: {_short(keys)}")
    return Container(kind, items, keys, type_name)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {_short(value)}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, found {_short(value)}")
    return value


def _key(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError(f"expected a string or integer key, found {_short(value)}")
    return value


def _short(value: Any) -> str:
    """A value for an error's text, which a damaged file must not flood."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
