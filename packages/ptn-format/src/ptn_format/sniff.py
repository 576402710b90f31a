"""What a file that is no `.ptn` package looks like: a good guess for the error text, nothing more."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection

__all__ = ["looks_like", "looks_like_zip_of"]

_HEAD = 512

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (4, b"NPTG", "a bare program (.ptg) outside its package. Write the whole package with `write_package`"),
    (4, b"ET12", "an ExecuTorch program (.pte); it has its own runtime"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (0, b"GGUF", "a GGUF file (llama.cpp). It holds weights, not a graph"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras .h5)"),
    (0, b"\x93NUMPY", "a numpy array (.npy)"),
    (0, b"\x1f\x8b", "a gzip archive. Decompress it first"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard archive. Decompress it first"),
    (0, b"\xfd7zXZ\0", "an xz archive. Decompress it first"),
    (0, b"BZh", "a bzip2 archive. Decompress it first"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (0, b"Rar!", "a RAR archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"\x7fELF", "an ELF binary (a program or shared library)"),
    (0, b"MZ", "a Windows binary"),
    (0, b"#!", "a script"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"%PDF", "a PDF document"),
)


def looks_like(view: memoryview) -> str:
    """Returns what the bytes of a file that is no zip archive look like, with an article and, at times, advice."""
    head = bytes(view[:_HEAD])
    for offset, signature, description in _SIGNATURES:
        if head.startswith(signature, offset):
            return f"it looks like {description}"
    for test, description in _TESTS:
        if test(head, len(view)):
            return f"it looks like {description}"
    if head.strip(b"\0") == b"":
        return "it starts with zeros only; was it fully downloaded or copied?"
    return f"it starts with {head[:8]!r}, which is no kind of file known here"


def looks_like_zip_of(names: Collection[str]) -> str:
    """Returns what a zip archive without `program.ptg` looks like, from the names of its members."""
    if not names:
        return "it is an empty zip archive"
    base = {name.rpartition("/")[2] for name in names}
    folders = [name.removesuffix("program.ptg") for name in names if name.endswith("/program.ptg")]
    if folders:
        return (
            f"it is a zip archive whose program.ptg lies in the folder {folders[0]!r}. "
            "The package's members must lie at the top: load it from there and write it again"
        )
    if "data.pkl" in base:
        kind = "TorchScript module (torch.jit.save)" if "constants.pkl" in base else "checkpoint (torch.save)"
        return f"it looks like a PyTorch {kind}. Export the module with torch.export and ptn_export.to_native"
    if (
        any(name.endswith(".json") and "models/" in name for name in names)
        or "serialized_exported_program.json" in base
    ):
        return "it looks like a torch.export file (.pt2). Load it with torch.export.load and pass it to to_native"
    for probe, description in _ZIP_KINDS:
        if any(name == probe or (probe[0] in "./" and name.endswith(probe)) for name in names):
            return f"it looks like {description}"
    some = ", ".join(repr(name[:60]) for name in sorted(names)[:3])
    return f"it is a zip archive without program.ptg; it holds {some}{', ...' if len(names) > 3 else ''}"


_ZIP_KINDS: tuple[tuple[str, str], ...] = (
    ("AndroidManifest.xml", "an Android package (.apk)"),
    ("META-INF/MANIFEST.MF", "a Java archive"),
    ("[Content_Types].xml", "an Office document"),
    (".dist-info/WHEEL", "a Python wheel"),
    (".npy", "a numpy archive (.npz)"),
    (".keras", "a Keras archive"),
    (".mlmodel", "a Core ML package"),
    ("program.safetensors", "a package that lost its program.ptg"),
)


def _is_safetensors(head: bytes, size: int) -> bool:
    return len(head) > 9 and head[8:9] == b"{" and struct.unpack_from("<Q", head)[0] <= size - 8


def _is_html(head: bytes, _: int) -> bool:
    return re.match(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head|!--)", head, re.IGNORECASE) is not None


def _is_pickle(head: bytes, _: int) -> bool:
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5


def _is_onnx(head: bytes, _: int) -> bool:
    # ModelProto: field 1 (ir_version) as a varint, then field 2 (producer_name) or 7/8 (graph, opset_import).
    return len(head) > 3 and head[0] == 0x08 and head[1] < 0x20 and head[2] in (0x12, 0x3A, 0x42)


def _is_text(head: bytes, _: int) -> bool:
    text = head.decode("utf-8", errors="ignore")
    return (
        bool(text.strip())
        and len(text.encode()) >= len(head) - 3
        and text.replace("\n", " ").replace("\t", " ").replace("\r", " ").isprintable()
    )


_TESTS: tuple[tuple[Callable[[bytes, int], bool], str], ...] = (
    (
        lambda head, _: head.startswith(b"version https://git-lfs"),
        "a Git LFS pointer: the file itself was not fetched. Run `git lfs pull`",
    ),
    (_is_safetensors, "a safetensors file (weights without a graph)"),
    (_is_html, "an HTML page, such as a download's error page. Download the file again"),
    (_is_pickle, "a Python pickle (an old PyTorch checkpoint?). Export the module with torch.export and to_native"),
    (_is_onnx, "an ONNX model"),
    (lambda head, _: head.lstrip().startswith((b"{", b"[")), "a JSON text"),
    (_is_text, "a text file"),
)
