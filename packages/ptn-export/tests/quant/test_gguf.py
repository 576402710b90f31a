"""Weights from GGUF files: blocks reach the package as they are, numbers are those of the decoded weights."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import ptn_runtime
import pytest
import torch
from ptn_export import ExportError, NativeProgram, to_native
from ptn_export.gguf import GGUFTensor, assign, read_gguf
from ptn_format.graph import PackedQuant
from ptn_format.package import Package, open_package
from ptn_format.quant import GGUF_TYPES, decode_gguf
from ptn_format.validate import validate_program
from torch import nn
from torch.nn import functional as F

ENGINES = ("reference", "ggml")


def random_blocks(name: str, rows: int, columns: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Blocks of random bits whose scales are small and finite: no byte, so no exponent either, is large."""
    kind = GGUF_TYPES[name]
    shape = kind.packed_shape((rows, columns))
    return np.random.default_rng(seed).integers(0, 32, shape, np.uint8)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 64)
        self.up = nn.Linear(64, 96)
        self.down = nn.Linear(96, 64, bias=False)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 40, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.down(torch.relu(self.up(self.embedding(ids))))))


NAMES = {
    "embedding.weight": "token_embd.weight",
    "head.weight": "token_embd.weight",
    "up.weight": "up.weight",
    "up.bias": "up.bias",
    "down.weight": "down.weight",
    "norm.weight": "norm.weight",
    "norm.bias": "norm.bias",
}
TYPES = {"token_embd.weight": ("Q8_0", (40, 64)), "up.weight": ("Q4_1", (96, 64)), "down.weight": ("Q5_0", (64, 96))}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "network.gguf"
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(str(path), "test")
    writer.add_uint32("test.block_count", 3)
    writer.add_float32("test.epsilon", 0.5)
    writer.add_array("test.tokens", ["a", "b c", "ä"])
    for name, (kind, shape) in TYPES.items():
        quant = gguf.GGMLQuantizationType[kind]
        values = gguf.quants.quantize(rng.standard_normal(shape, np.float32) * 0.2, quant)
        writer.add_tensor(name, values, raw_dtype=quant)
    for name, size in (("up.bias", 96), ("norm.weight", 64), ("norm.bias", 64)):
        writer.add_tensor(name, rng.standard_normal(size, np.float32))
    writer.add_tensor("half", np.arange(6, dtype=np.float16).reshape(2, 3))
    brain = np.array([[1.5, -2.0]], np.float32).view(np.uint32) >> 16
    writer.add_tensor("brain", brain.astype(np.uint16).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def network(tensors: Mapping[str, torch.Tensor]) -> Network:
    with torch.device("meta"):
        model = Network()
    assign(model, tensors, NAMES)
    return model.eval()


def saved(native: NativeProgram) -> bytes:
    file = io.BytesIO()
    native.save(file)
    return file.getvalue()


def opened(data: bytes) -> Package:
    package = open_package(data)
    infos = {key: package.constant_info(key) for key in package.constant_keys}
    assert validate_program(package.program, infos) == []
    return package


def codecs(package: Package, method: str = "forward") -> dict[str, str]:
    quants = {ref.data_key: ref.meta.quant for ref in package.method(method).constants}
    return {key: quant.codec for key, quant in quants.items() if isinstance(quant, PackedQuant)}


def targets(package: Package) -> list[str]:
    return [node.target for node in package.method("forward").graph.nodes if node.target]


def assert_equal_to_eager(model: nn.Module, data: bytes, *inputs: torch.Tensor, tolerance: float = 1e-5) -> None:
    with torch.no_grad():
        expected = model(*inputs).float().numpy()
    for engine in ENGINES:
        with ptn_runtime.load(data, engine=engine) as loaded:
            actual = np.asarray(loaded(*(x.numpy() for x in inputs)), np.float32)
        assert np.abs(actual - expected).max() <= tolerance * max(1.0, np.abs(expected).max()), engine


def test_file_is_read(path: Path) -> None:
    file = read_gguf(path)
    assert file.metadata["test.block_count"] == 3
    assert file.metadata["test.epsilon"] == 0.5
    assert file.metadata["test.tokens"] == ["a", "b c", "ä"]
    assert list(file.tensors) == [*TYPES, "up.bias", "norm.weight", "norm.bias", "half", "brain"]
    assert file.tensors["half"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.tensors["brain"].dtype is torch.bfloat16
    assert file.tensors["brain"].tolist() == [[1.5, -2.0]]
    for name, (kind, shape) in TYPES.items():
        tensor = file.tensors[name]
        assert isinstance(tensor, GGUFTensor)
        assert (tuple(tensor.shape), tensor.ggml_type, tensor.dtype) == (shape, kind.lower(), torch.float32)
        codec = f"gguf:{kind.lower()}"
        assert np.array_equal(tensor.dequantize().numpy(), decode_gguf(codec, tensor.blocks.numpy(), shape))


def test_stacks_are_read_as_matrices(tmp_path: Path) -> None:
    """The weights of all experts of a layer are one tensor of three axes."""
    path = tmp_path / "experts.gguf"
    writer = gguf.GGUFWriter(str(path), "test")
    values = np.random.default_rng(2).standard_normal((3, 8, 64), np.float32)
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("up_exps.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors = read_gguf(path).tensors
    assert list(tensors) == [f"up_exps.weight[{i}]" for i in range(3)]
    experts = nn.ModuleList(nn.Linear(64, 8, bias=False, device="meta") for _ in range(3))
    assign(experts, tensors, {f"{i}.weight": f"up_exps.weight[{i}]" for i in range(3)})
    for expert, matrix in zip(experts, blocks, strict=True):
        assert isinstance(expert.weight.data, GGUFTensor)
        assert np.array_equal(expert.weight.data.blocks.numpy(), matrix)


def test_blocks_go_into_the_package_as_they_are(path: Path) -> None:
    file = read_gguf(path)
    model = network(file.tensors)
    ids = torch.randint(0, 40, (2, 5))
    data = saved(to_native(torch.export.export(model, (ids,))))
    package = opened(data)
    found = codecs(package)
    assert sorted(found.values()) == ["gguf:q4_1", "gguf:q5_0", "gguf:q8_0"]  # the tied weight once
    stored = {found[key]: package.constant(key) for key in found}
    for name, (kind, _) in TYPES.items():
        assert np.array_equal(stored[f"gguf:{kind.lower()}"], file.tensors[name].blocks.numpy())  # type: ignore[attr-defined]
    assert not [target for target in targets(package) if "dequantize" in target or "_to_copy" in target]
    assert_equal_to_eager(model, data, ids)
    plain = {name: t.dequantize() if isinstance(t, GGUFTensor) else t for name, t in file.tensors.items()}
    assert torch.equal(network(plain)(ids), model(ids))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(path: Path, dtype: torch.dtype) -> None:
    model = network(read_gguf(path, dtype=dtype).tensors).to(dtype)
    ids = torch.randint(0, 40, (2, 5))
    data = saved(to_native(torch.export.export(model, (ids,))))
    assert len(codecs(opened(data))) == 3
    assert_equal_to_eager(model, data, ids, tolerance=3e-2)


def test_every_block_type() -> None:
    """One linear layer for each type, all in one program."""

    class All(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in GGUF_TYPES:
                layer = nn.Linear(256, 3, bias=False)
                layer.weight = nn.Parameter(GGUFTensor(torch.from_numpy(random_blocks(name, 3, 256)), name), False)
                setattr(self, name, layer)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([self.scaled(getattr(self, name)(x)) for name in GGUF_TYPES])

        def scaled(self, y: torch.Tensor) -> torch.Tensor:
            return y / y.abs().amax()  # some types have tiny values

    model = All().eval()
    x = torch.randn(2, 256)
    native = to_native(torch.export.export(model, (x,)))
    data = saved(native)
    package = opened(data)
    found = codecs(package)
    assert found == {f"{name}.parametrizations.weight.original0": f"gguf:{name}" for name in GGUF_TYPES}
    for name in GGUF_TYPES:
        stored = package.constant(f"{name}.parametrizations.weight.original0")
        assert np.array_equal(stored, random_blocks(name, 3, 256))
    with torch.no_grad():
        expected = model(x).numpy()
    assert np.isfinite(expected).all()
    for engine in ENGINES:
        with ptn_runtime.load(data, engine=engine) as loaded:
            np.testing.assert_allclose(loaded(x.numpy()), expected, atol=2e-5, err_msg=engine)


class Reads(nn.Module):
    """Reads a weight in the way that `read` does."""

    def __init__(self, read: Any, dtype: torch.dtype = torch.float32, name: str = "q4_k") -> None:
        super().__init__()
        self.read = read
        blocks = torch.from_numpy(random_blocks(name, 6, 256))
        self.weight = nn.Parameter(GGUFTensor(blocks, name, dtype), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(x, self.weight)


@pytest.mark.parametrize(
    "read",
    [
        lambda x, w: x @ w.t(),
        lambda x, w: x * w[1] + w[2:3],
        lambda x, w: F.linear(x, w) + w.sum(),
        lambda x, w: F.linear(x, w.to(torch.float16).float()),
        lambda x, w: F.linear(x.half(), w.half()).float(),
        lambda x, w: F.layer_norm(F.linear(x, w * 3), (6,)),
    ],
    ids=["transposed", "rows", "both", "rounded", "half", "scaled"],
)
def test_other_readers_get_the_decoded_values(read: Any) -> None:
    model = Reads(read)
    x = torch.randn(4, 256)
    data = saved(to_native(torch.export.export(model, (x,))))
    assert list(codecs(opened(data)).values()) == ["gguf:q4_k"]
    assert_equal_to_eager(model, data, x, tolerance=2e-3)
    with ptn_runtime.load(data, engine="reference") as loaded:
        np.testing.assert_allclose(loaded(x.numpy()), model(x), rtol=1e-3, atol=1e-5)


def test_methods_share_blocks(path: Path) -> None:
    model = network(read_gguf(path).tensors)
    one = torch.export.export(model, (torch.zeros(1, 1, dtype=torch.int64),))
    many = torch.export.export(model, (torch.zeros(1, 7, dtype=torch.int64),))
    native = to_native({"decode": one, "prefill": many})
    package = opened(saved(native))
    assert codecs(package, "decode") == codecs(package, "prefill")
    assert len(native.constants) == 6


# Graphs of executorch


def _register_upstream_operator() -> None:
    """executorch defines it when its own loader is imported; where that is not installed, the test does."""
    if hasattr(torch.ops.torchao, "dequantize_gguf"):
        return

    @torch.library.custom_op("torchao::dequantize_gguf", mutates_args=())
    def dequantize(weight: torch.Tensor, ggml_type: str, output_dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.ops.ptn.dequantize_gguf(weight, ggml_type, output_dtype)

    @dequantize.register_fake
    def _(weight: torch.Tensor, ggml_type: str, output_dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.ops.ptn.dequantize_gguf(weight, ggml_type, output_dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_graphs_of_upstream_are_accepted(dtype: torch.dtype) -> None:
    _register_upstream_operator()

    class Upstream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.from_numpy(random_blocks("q6_k", 9, 256)))
            self.register_buffer("weight", torch.from_numpy(random_blocks("q4_k", 6, 256)))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            decode = torch.ops.torchao.dequantize_gguf
            table = decode(self.table, "q6_k", dtype) if dtype is torch.float32 else decode(self.table, "q6_k")
            return F.linear(F.embedding(ids, table), decode(self.weight, "q4_k", dtype))

    model = Upstream()
    ids = torch.tensor([[1, 8, 0]])
    data = saved(to_native(torch.export.export(model, (ids,))))
    package = opened(data)
    assert codecs(package) == {"table": "gguf:q6_k", "weight": "gguf:q4_k"}
    assert targets(package) == ["torch.ops.aten.embedding.default", "torch.ops.aten.linear.default"]
    assert_equal_to_eager(model, data, ids, tolerance=1e-5 if dtype is torch.float32 else 2e-2)


# Refusals


def patched(path: Path, name: str, row: int) -> Path:
    """A copy of the file that claims another row length for a tensor."""
    data = bytearray(path.read_bytes())
    place = data.index(name.encode()) + len(name) + 4
    data[place : place + 8] = row.to_bytes(8, "little")
    copy = path.with_name("patched.gguf")
    copy.write_bytes(data)
    return copy


def test_rows_that_are_not_whole_blocks_are_refused(path: Path) -> None:
    with pytest.raises(ValueError, match=r"tensor 'up.weight': a row has 50 elements.*the 32 elements of a q4_1 block"):
        read_gguf(patched(path, "up.weight", 50))


def test_blocks_in_a_graph_that_are_not_whole_are_refused() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.zeros(6, 145, dtype=torch.uint8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, torch.ops.ptn.dequantize_gguf(self.weight, "q4_k", torch.float32))

    exported = torch.export.export(Broken(), (torch.randn(2, 256),))
    message = r"1 problem[\s\S]*a row has 145 bytes, which is no multiple of the 144 bytes of a q4_k block[\s\S]*weight"
    with pytest.raises(ExportError, match=message):
        to_native(exported)


def test_damaged_files_are_refused(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    broken = tmp_path / "broken.gguf"
    for size in (1, 4, 8, 23, 40, 100, 300, 500, len(data) - 40, len(data) // 2):
        broken.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"broken\.gguf"):
            read_gguf(broken)
    broken.write_bytes(b"PK\3\4" + data[4:])
    with pytest.raises(ValueError, match=r"broken\.gguf.*magic"):
        read_gguf(broken)


def test_assign_says_what_does_not_fit(path: Path) -> None:
    tensors = read_gguf(path).tensors
    with torch.device("meta"):
        model = Network()
    with pytest.raises(KeyError, match=r"parameter 'up\.bias' has no tensor.*'up\.bias'"):
        assign(model, tensors, {name: source for name, source in NAMES.items() if name != "up.bias"})
    with pytest.raises(ValueError, match=r"'up\.weight' is \[96, 64\], the tensor 'down\.weight' \[64, 96\]"):
        assign(model, tensors, {**NAMES, "up.weight": "down.weight"})
    packed = GGUFTensor(torch.from_numpy(random_blocks("q8_0", 1, 64)), "q8_0")
    model.norm.weight = nn.Parameter(torch.zeros(1, 64))
    with pytest.raises(TypeError, match=r"'x' is quantised \(q8_0\).*'norm\.weight' of LayerNorm"):
        assign(model, {**tensors, "x": packed}, {**NAMES, "norm.weight": "x"})


def test_wrong_blocks_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"blocks of q8_0 are uint8 \[rows, a multiple of 34 bytes\], got uint8\[2, 33\]"
    ):
        GGUFTensor(torch.zeros(2, 33, dtype=torch.uint8), "q8_0")
    with pytest.raises(ValueError, match="decoded to float32, float16 or bfloat16"):
        GGUFTensor(torch.zeros(2, 34, dtype=torch.uint8), "q8_0", torch.float64)


def test_blocks_read_in_a_branch_are_refused() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("blocks", torch.from_numpy(random_blocks("q4_k", 6, 256)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def decode(x: torch.Tensor) -> torch.Tensor:
                return F.linear(x, torch.ops.ptn.dequantize_gguf(self.blocks, "q4_k", torch.float32))

            return torch.cond(x.sum() > 0, decode, lambda x: x[:, :6] * 2, (x,))

    with pytest.raises(ExportError, match="its blocks are read where a package cannot name their codec"):
        to_native(torch.export.export(Branches(), (torch.randn(4, 256),)))
