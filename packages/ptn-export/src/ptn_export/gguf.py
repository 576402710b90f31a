"""Weights from GGUF files: read through a memory map, kept in their blocks, exported as they are.

    file = read_gguf("model.gguf")
    assign(model, file.tensors, {"layers.0.query.weight": "blk.0.attn_q.weight", ...})
    to_native(torch.export.export(model.eval(), example)).save("model.ptn")

Quantised tensors stay `GGUFTensor`s: eager PyTorch decodes them where they are used, a package holds their blocks under
the codec `gguf:<type>`. Needs the `gguf` package: `pip install 'ptn-export[gguf]'`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from ptn_format.dtypes import ScalarType
from ptn_format.quant import GGUF_TYPES, decode_gguf, gguf_type
from torch import nn
from torch.utils import _pytree as pytree

from ptn_export.dims import SCALAR_TYPES

__all__ = ["GGUFFile", "GGUFTensor", "assign", "read_gguf"]

_aten = torch.ops.aten
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_PLAIN |= {"I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64}
_VALUE_TYPES = (torch.float32, torch.float16, torch.bfloat16)


# The operator that decodes blocks; the exporter takes it out of the graph again.


@torch.library.custom_op("ptn::dequantize_gguf", mutates_args=())
def _dequantize(blocks: torch.Tensor, ggml_type: str, output_dtype: torch.dtype) -> torch.Tensor:
    kind = gguf_type(f"gguf:{ggml_type}")
    shape = (blocks.shape[0], blocks.shape[1] // kind.nbytes * kind.elements)
    dtype = SCALAR_TYPES[output_dtype]
    values = decode_gguf(f"gguf:{ggml_type}", blocks.cpu().numpy(), shape, dtype.numpy)
    if dtype is ScalarType.BFLOAT16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16).to(blocks.device)
    return torch.from_numpy(values).to(blocks.device)


@_dequantize.register_fake
def _(blocks: torch.Tensor, ggml_type: str, output_dtype: torch.dtype) -> torch.Tensor:
    kind = gguf_type(f"gguf:{ggml_type}")
    shape = (blocks.shape[0], blocks.shape[1] // kind.nbytes * kind.elements)
    return blocks.new_empty(shape, dtype=output_dtype)


class GGUFTensor(torch.Tensor):
    """A matrix in GGUF blocks that PyTorch sees as one of floating-point numbers.

    Linear layers and embeddings decode it where they use it, as does any other operator. `.to(dtype)` changes only the
    type that it is decoded to.

    Attributes:
        blocks: uint8 [rows, bytes of a row].
        ggml_type: the block type, such as `q4_k`.
    """

    blocks: torch.Tensor
    ggml_type: str

    @staticmethod
    def __new__(cls, blocks: torch.Tensor, ggml_type: str, dtype: torch.dtype = torch.float32) -> GGUFTensor:  # noqa: D102
        kind = gguf_type(f"gguf:{ggml_type}")
        if blocks.dtype is not torch.uint8 or blocks.dim() != 2 or blocks.shape[1] % kind.nbytes:
            raise ValueError(
                f"blocks of {kind.name} are uint8 [rows, a multiple of {kind.nbytes} bytes], got "
                f"{str(blocks.dtype).removeprefix('torch.')}{list(blocks.shape)}"
            )
        if dtype not in _VALUE_TYPES:
            raise ValueError(f"blocks are decoded to float32, float16 or bfloat16, not to {dtype}")
        shape = (blocks.shape[0], blocks.shape[1] // kind.nbytes * kind.elements)
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=blocks.device)

    def __init__(self, blocks: torch.Tensor, ggml_type: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.blocks = blocks
        self.ggml_type = gguf_type(f"gguf:{ggml_type}").name

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The values, as a plain tensor of `dtype` (this tensor's own where it is left out)."""
        return cast(torch.Tensor, torch.ops.ptn.dequantize_gguf(self.blocks, self.ggml_type, dtype or self.dtype))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"GGUFTensor({self.ggml_type}, shape={tuple(self.shape)}, dtype={self.dtype})"

    def __tensor_flatten__(self) -> tuple[list[str], tuple[str, torch.dtype]]:
        return ["blocks"], (self.ggml_type, self.dtype)

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, torch.Tensor], context: tuple[str, torch.dtype], outer_size: Any, outer_stride: Any
    ) -> GGUFTensor:
        return GGUFTensor(inner["blocks"], *context)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # a class method, as PyTorch calls it
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (_aten.detach.default, _aten.alias.default):
            return GGUFTensor(func(args[0].blocks), args[0].ggml_type, args[0].dtype)
        if func is _aten.clone.default:
            return GGUFTensor(args[0].blocks.clone(), args[0].ggml_type, args[0].dtype)
        if func is _aten._to_copy.default and kwargs.get("dtype", torch.float32) in (*_VALUE_TYPES, None):
            blocks = args[0].blocks
            device = kwargs.get("device")
            moved = blocks if device is None else blocks.to(device)
            return GGUFTensor(moved, args[0].ggml_type, kwargs.get("dtype") or args[0].dtype)
        args, kwargs = pytree.tree_map_only(GGUFTensor, GGUFTensor.dequantize, (tuple(args), dict(kwargs)))
        return func(*args, **kwargs)


@dataclass(frozen=True)
class GGUFFile:
    """What a GGUF file holds.

    Attributes:
        metadata: by key, such as `llama.block_count`: numbers, strings, or lists of them.
        tensors: by name, in the file's order, row-major; quantised ones as `GGUFTensor`. One of three axes, such as
            the weights of all experts of a layer, comes as its matrices, under `name[0]`, `name[1]`, ... Their memory
            is the file's own (mapped, private to the process), so the file must not be cut while they are in use.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]


def read_gguf(path: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32) -> GGUFFile:
    """Reads a GGUF file; the tensors are mapped, not copied.

    Args:
        path: the file.
        dtype: what quantised tensors are decoded to: float32, float16 or bfloat16.

    Raises:
        ImportError: the `gguf` package is not installed.
        ValueError: the file is no GGUF file, a tensor's type is not known, its rows are not whole blocks, or it is
            quantised and has one axis or more than three.
        OSError: the file cannot be read.
    """
    reader = _open(path)
    metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tensors = {name: tensor for item in reader.tensors for name, tensor in _tensors(item, dtype)}
    return GGUFFile(metadata, tensors)


def _open(path: str | os.PathLike[str]) -> Any:
    try:
        import gguf
    except ImportError as error:
        raise ImportError(
            f"GGUF files are read with the gguf package, which cannot be imported ({error}). "
            "Install it: pip install 'ptn-export[gguf]'"
        ) from error

    class Reader(gguf.GGUFReader):  # type: ignore[misc]  # the package has no types
        def _get(self, *args: Any, **kwargs: Any) -> Any:
            # Slices of a plain array are made several times as fast as those of a memory map; there is one per string.
            self.data: Any = np.asarray(self.data)
            return super()._get(*args, **kwargs)

        def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
            for field in fields:
                _, name, _, sizes, number, _ = field.parts
                kind = gguf.GGMLQuantizationType(int(number[0]))
                elements = gguf.GGML_QUANT_SIZES[kind][0]
                row = int(sizes[0]) if len(sizes) else 1
                if row % elements:
                    raise ValueError(
                        f"tensor '{bytes(name).decode()}': a row has {row} elements, which is no multiple of the "
                        f"{elements} elements of a {kind.name.lower()} block"
                    )
            super()._build_tensors(start_offs, fields)

    try:
        # Copy-on-write: PyTorch wants memory that it could write to.
        return Reader(os.fspath(path), "c")
    except (IndexError, KeyError, ValueError, OverflowError, MemoryError) as error:
        raise ValueError(f"{os.fspath(path)} is not a whole GGUF file: {error}") from error


def _tensors(item: Any, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """One tensor of the file, with its name; the matrices of a quantised one of three axes."""
    name = item.tensor_type.name
    data = np.asarray(item.data)
    if name == "BF16":
        yield item.name, torch.from_numpy(data.view(np.int16)).view(torch.bfloat16)
    elif name in _PLAIN:
        yield item.name, torch.from_numpy(data)
    elif name.lower() not in GGUF_TYPES:
        raise ValueError(f"tensor '{item.name}' has the type {name.lower()}; known are {', '.join(GGUF_TYPES)}")
    elif data.ndim == 2:
        yield item.name, GGUFTensor(torch.from_numpy(data), name.lower(), dtype)
    elif data.ndim == 3:
        for i, matrix in enumerate(data):
            yield f"{item.name}[{i}]", GGUFTensor(torch.from_numpy(matrix), name.lower(), dtype)
    else:
        raise ValueError(
            f"tensor '{item.name}' is quantised ({name.lower()}) and has {data.ndim} axes; only matrices and stacks of "
            "matrices stay packed"
        )


def assign(
    module: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    names: Mapping[str, str] | Callable[[str], str],
) -> None:
    """Makes tensors of a file the parameters of a module, without a copy.

    Args:
        module: every parameter gets a tensor, and may be on the meta device before. Quantised tensors may become
            weights of `nn.Linear` and `nn.Embedding`. Two parameters that get one tensor are tied.
        tensors: by name, as in `GGUFFile.tensors`.
        names: the tensor's name for each parameter's name.

    Raises:
        KeyError: a parameter has no tensor.
        ValueError: the shape differs.
        TypeError: a quantised tensor is neither for a linear layer nor for an embedding.
    """
    made: dict[str, nn.Parameter] = {}
    for name, old in list(module.named_parameters(remove_duplicate=False)):
        try:
            source = names(name) if callable(names) else names[name]
            tensor = tensors[source]
        except KeyError as error:
            raise KeyError(f"the parameter '{name}' has no tensor: there is no {error}") from error
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        if tensor.shape != old.shape:
            raise ValueError(f"the parameter '{name}' is {list(old.shape)}, the tensor '{source}' {list(tensor.shape)}")
        if isinstance(tensor, GGUFTensor) and not (isinstance(owner, nn.Linear | nn.Embedding) and leaf == "weight"):
            raise TypeError(
                f"the tensor '{source}' is quantised ({tensor.ggml_type}), but the parameter '{name}' of "
                f"{type(owner).__name__} is not the weight of a Linear or an Embedding; use its `.dequantize()`"
            )
        setattr(owner, leaf, made.setdefault(source, nn.Parameter(tensor, requires_grad=False)))
