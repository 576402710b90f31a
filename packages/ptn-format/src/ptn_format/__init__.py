"""Read, write and check `.ptn` packages.

`open_package` and `write_package` are the way in and out; `ptn_format.graph` holds the classes of a program,
`ptn_format.quant` the quantised encodings, `ptn_format.text` the printers.
"""

from ptn_format._version import __version__
from ptn_format.codec import FORMAT_VERSION, ProgramReader, decode_program, encode_program
from ptn_format.dtypes import ScalarType
from ptn_format.errors import (
    ArchiveError,
    ConstantError,
    FormatError,
    GraphError,
    LimitError,
    NotAPackageError,
    ProgramError,
    SignatureError,
    UnsupportedVersionError,
    WeightsError,
    WriteError,
)
from ptn_format.graph import Graph, Method, Node, Program, TensorMeta
from ptn_format.package import Package, open_package, write_package
from ptn_format.quant import (
    GGUF_TYPES,
    GGUFType,
    decode_gguf,
    dequantize_affine,
    pack_affine,
    unpack_affine,
)
from ptn_format.signature import Signature
from ptn_format.text import to_dot, to_json, to_text
from ptn_format.validate import Problem, check_program, validate_program
from ptn_format.weights import ConstantInfo

__all__ = [
    "FORMAT_VERSION",
    "GGUF_TYPES",
    "ArchiveError",
    "ConstantError",
    "ConstantInfo",
    "FormatError",
    "GGUFType",
    "Graph",
    "GraphError",
    "LimitError",
    "Method",
    "Node",
    "NotAPackageError",
    "Package",
    "Problem",
    "Program",
    "ProgramError",
    "ProgramReader",
    "ScalarType",
    "Signature",
    "SignatureError",
    "TensorMeta",
    "UnsupportedVersionError",
    "WeightsError",
    "WriteError",
    "__version__",
    "check_program",
    "decode_gguf",
    "decode_program",
    "dequantize_affine",
    "encode_program",
    "open_package",
    "pack_affine",
    "to_dot",
    "to_json",
    "to_text",
    "unpack_affine",
    "validate_program",
    "write_package",
]
