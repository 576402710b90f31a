"""The user's calling convention: from PyTorch's tree specs to the file's `Signature`."""

from __future__ import annotations

import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ptn_format.signature import Container, Parameter, Signature, Tree
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

__all__ = ["make_signature"]

_DICTS = (dict, OrderedDict, defaultdict)
_LISTS = (list, deque)


def make_signature(program: ExportedProgram, inputs: Sequence[Tree], results: Sequence[Tree]) -> Signature:
    """The signature of an exported program.

    Args:
        program: the program as the user exported it.
        inputs: for each leaf of the inputs, in order, its place among the graph's inputs or its fixed value.
        results: for each leaf of the result, in order, its place among the results.
    """
    spec = program.call_spec.in_spec
    leaves = iter(inputs)
    positional, named = spec.children()
    names = _positional_names(program, len(positional.children()))
    parameters = [
        Parameter(name, _tree(child, leaves)) for name, child in zip(names, positional.children(), strict=True)
    ]
    parameters += [
        Parameter(str(key), _tree(child, leaves), keyword_only=True)
        for key, child in zip(named.context or (), named.children(), strict=True)
    ]
    return Signature(tuple(parameters), _tree(program.call_spec.out_spec, iter(results)))


def _positional_names(program: ExportedProgram, count: int) -> list[str]:
    """Names of the first `count` parameters of the exported function."""
    root = program.module_call_graph[0].signature if program.module_call_graph else None
    known = list(root.forward_arg_names or ()) if root is not None else []
    return known[:count] + [f"arg{i}" for i in range(len(known[:count]), count)]


def _tree(spec: pytree.TreeSpec, leaves: Iterator[Tree]) -> Tree:
    if spec.is_leaf():
        return next(leaves)
    children = spec.children()
    items = tuple(_tree(child, leaves) for child in children)
    if spec.type is tuple:
        return Container("tuple", items)
    if spec.type in _LISTS:
        return Container("list", items)
    if spec.type in _DICTS:
        keys = spec.context[1] if spec.type is defaultdict else spec.context
        return Container("dict", items, tuple(map(_key, keys)))
    for cls in (spec.context, spec.type):  # every namedtuple has one kind of spec, which keeps the class as context
        fields = getattr(cls, "_fields", None)
        if isinstance(cls, type) and fields and len(fields) == len(items):
            # Fields that Python made up for names that it does not allow (`rename=True`) cannot be asked for again.
            made_up = any(field.startswith("_") for field in fields)
            return Container("object" if made_up else "namedtuple", items, tuple(fields), cls.__name__)
    return Container("object", items, _object_keys(spec, len(items)), getattr(spec.type, "__name__", str(spec.type)))


class _Place(int):
    """Stands for a child of a registered class: an integer that is not any other one."""


def _object_keys(spec: pytree.TreeSpec, count: int) -> tuple[str | int, ...]:
    """Names of the children of a registered class, else their positions.

    They are what its flattening calls them. A class that flattens without names has them as its keys or attributes.
    """
    definition = pytree.SUPPORTED_NODES.get(spec.type)
    names: tuple[str | int, ...] = ()
    if definition is not None:
        places = [_Place(i) for i in range(count)]
        try:
            # The registered functions know the names only through an instance, so one is made around placeholders.
            with warnings.catch_warnings(action="ignore"):
                instance = definition.unflatten_fn(places, spec.context)
                with_keys: Callable[[Any], Any] | None = definition.flatten_with_keys_fn
                if with_keys is not None:
                    names = tuple(_entry_name(entry) for entry, _ in with_keys(instance)[0])
                else:
                    names = _names_in(instance, places)
        except Exception:  # a class that rejects placeholders only loses the names of its parts
            names = ()
    return names if len(names) == count else tuple(str(i) for i in range(count))


def _names_in(instance: Any, places: Sequence[_Place]) -> tuple[str | int, ...]:
    """What an instance calls each of the objects `places` that it was made of; nothing where one has no name."""
    if isinstance(instance, Mapping):
        items = dict(instance)
    else:
        slots = [name for cls in type(instance).__mro__ for name in getattr(cls, "__slots__", ())]
        items = {name: getattr(instance, name) for name in [*getattr(instance, "__dict__", ()), *slots]}
    known = {id(value): _key(key) for key, value in items.items()}
    return tuple(known[id(place)] for place in places if id(place) in known)


def _entry_name(entry: Any) -> str | int:
    for attribute in ("name", "key", "idx"):
        if hasattr(entry, attribute):
            return _key(getattr(entry, attribute))
    return _key(entry)


def _key(key: Any) -> str | int:
    return key if isinstance(key, str | int) and not isinstance(key, bool) else str(key)
