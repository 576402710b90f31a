"""Shape rules bear PyTorch's own schemas: argument names, order and defaults."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from ptn_runtime.shapes import OPERATORS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch.ao.quantization.fx._decomposed  # defines quantized_decomposed
    import torchao.quantization  # noqa: F401  defines torchao

ELSEWHERE = {
    # Defined by executorch's export extensions, which need not be installed.
    "torchao.dequantize_gguf.default",
    "torchao.dequantize_int4_tensor.default",
    "quantized_decomposed.embedding_4bit.default",
    "quantized_decomposed.embedding_4bit.dtype",
}
NAMES = sorted(
    name for name in OPERATORS if not name.startswith(("ptn.", "control.", "native.")) and name not in ELSEWHERE
)


def _overload(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_the_schema(name: str) -> None:
    arguments = [a for a in _overload(name)._schema.arguments if a.name != "generator"]
    operator = OPERATORS[name]
    assert sorted(operator.parameters) == sorted(a.name for a in arguments)
    positional = [a.name for a in arguments if not a.kwarg_only]
    assert list(operator.parameters[: len(positional)]) == positional


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return value


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_the_schemas(name: str) -> None:
    arguments = [a for a in _overload(name)._schema.arguments if a.name != "generator"]
    if name == "aten._assert_async.msg":
        return  # the rule also takes the overload without a text
    want = {a.name: _plain(a.default_value) for a in arguments if a.has_default_value()}
    got = dict(OPERATORS[name].defaults)
    if want.get("memory_format") == 0:  # the schema has the number of a memory format, files its name
        want["memory_format"] = "torch.contiguous_format"
    assert got == want


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_the_arguments_without_tensors(name: str) -> None:
    arguments = [a for a in _overload(name)._schema.arguments if a.name != "generator"]
    assert OPERATORS[name].numbers >= {a.name for a in arguments if "Tensor" not in str(a.type)} - _LOOSE.get(
        name, set()
    )
    assert not OPERATORS[name].numbers & {a.name for a in arguments if "Tensor" in str(a.type)}


# One rule serves overloads that take a tensor or a number in the same place.
_LOOSE = {
    name: {"value"}
    for name in (
        "aten.fill.Scalar",
        "aten.index_fill.int_Scalar",
        "aten.masked_fill.Scalar",
    )
}
