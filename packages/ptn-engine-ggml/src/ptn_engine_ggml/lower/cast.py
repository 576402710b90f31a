"""Changes of the element type. The device and the memory layout that PyTorch's operators name have no meaning here."""

from __future__ import annotations

from typing import Any

from ptn_engine_ggml._native import Builder, Tensor
from ptn_engine_ggml.lower.common import promoted
from ptn_engine_ggml.lower.registry import Outputs, lower


@lower(
    "aten._to_copy.default",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.type_as.default",
    "quantized_decomposed.convert_element_type.no_fuse",
)
def to_copy(b: Builder, out: Outputs, **args: Any) -> Tensor:
    x = args["self"] if "self" in args else args["input"]
    return promoted(b, x, out.dtype)


@lower("aten.copy.default")
def copy(b: Builder, out: Outputs, self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return promoted(b, src, out.dtype).expand(out.shape)
