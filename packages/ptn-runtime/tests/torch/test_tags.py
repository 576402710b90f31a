"""The lists of operators in tests/shapes against the tags of the PyTorch that is installed."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.ao.quantization.fx._decomposed  # its operators
import torchao.quantization.pt2e.reference_representation_rewrite  # noqa: F401  all that TorchAO registers
from ptn_runtime.conformance.case import NOT_IN_TORCH
from ptn_runtime.reference import KERNELS
from ptn_runtime.shapes import OPERATORS

FOLDER = Path(__file__).parents[1] / "shapes"


def tagged(tag: torch.Tag) -> set[str]:
    """Overloads of aten that bear a tag, as `name.overload`."""
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        name, overload = schema.name.removeprefix("aten::"), schema.overload_name or "default"
        packet = getattr(torch.ops.aten, name)
        if overload in packet.overloads() and tag in getattr(packet, overload).tags:
            found.add(f"{name}.{overload}")
    return found


def listed(file: str) -> set[str]:
    return set((FOLDER / file).read_text(encoding="ascii").split())


def test_core() -> None:
    assert listed("core.txt") == tagged(torch.Tag.core)


def test_view_copies() -> None:
    assert listed("view_copies.txt") == {name for name in tagged(torch.Tag.view_copy) if not name.endswith("out")}


def test_what_is_listed_exists() -> None:
    """Except what executorch and its exporter define themselves."""
    for name in (*listed("in_place.txt"), *listed("kept_whole.txt")):
        namespace, packet, overload = name.split(".") if name.count(".") == 2 else ("aten", *name.split("."))
        full = f"{namespace}.{packet}.{overload}"
        if not full.startswith(NOT_IN_TORCH):
            assert overload in getattr(getattr(torch.ops, namespace), packet).overloads(), full


TRAINING_ONLY = {"quantized_decomposed.fake_quant_per_channel.default"}
COMPOSITE = {"torchao.reference_dqlinear_int4.default"}  # taken apart at export
FOR_ONE_KIND_OF_DEVICE = (
    "_linear_8bit_act_",  # weights in a layout of one processor
    "float8",  # a dtype that files cannot hold
    "cutlass",
    "da8w4_linear",
    "mx_fp8",
    "qscaled_dot_product",
    "_scaled_embedding_bag",
    "swizzle",
)


def test_operators_for_quantisation() -> None:
    """All of PyTorch's and TorchAO's, but for composites, kernels of one device and training."""
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        namespace, name = schema.name.split("::")
        if namespace in ("quantized_decomposed", "torchao") and not any(
            part in name for part in FOR_ONE_KIND_OF_DEVICE
        ):
            found.add(f"{namespace}.{name}.{schema.overload_name or 'default'}")
    assert len(found) > 20
    needed = found - TRAINING_ONLY - COMPOSITE
    assert needed - set(OPERATORS) == set()
    assert needed - set(KERNELS) == set()
