"""What a reader of this release accepts at most; beyond it reading ends with a `LimitError`.

The caps keep sizes that a file merely claims from turning into memory or time. They lie far above every real
model, and equal the ones of the format's other readers where those have one, so that a file which one reader
opens opens everywhere.
"""

from __future__ import annotations

__all__ = [
    "MAX_AXIS_SIZE",
    "MAX_CONSTANTS_BYTES",
    "MAX_GRAPH_DEPTH",
    "MAX_JSON_BYTES",
    "MAX_JSON_DEPTH",
    "MAX_JSON_VALUES",
    "MAX_MEMBERS",
    "MAX_MEMBER_BYTES",
    "MAX_METHODS",
    "MAX_PACKAGE_BYTES",
    "MAX_PROGRAM_BYTES",
    "MAX_RANK",
    "MAX_TENSORS",
    "MAX_TENSOR_BYTES",
]

MAX_PACKAGE_BYTES = 1 << 40
"""Bytes of a whole `.ptn` file."""
MAX_MEMBER_BYTES = 1 << 40
"""Bytes of one zip member."""
MAX_TENSOR_BYTES = 1 << 40
"""Bytes of one tensor."""
MAX_CONSTANTS_BYTES = 1 << 40
"""Bytes of all constants of a package together."""
MAX_MEMBERS = 1 << 20
"""Members of the zip archive."""
MAX_TENSORS = 1 << 20
"""Entries of the safetensors header, and entries of `aliases.json`: each."""
MAX_PROGRAM_BYTES = 1 << 30
"""Bytes of `program.ptg`."""
MAX_METHODS = 1 << 16
"""Methods of a program."""
MAX_RANK = 64
"""Axes of a tensor."""
MAX_AXIS_SIZE = (1 << 31) - 1
"""Elements along one axis."""
MAX_GRAPH_DEPTH = 64
"""Graph bodies within each other, counting the method's own."""
MAX_JSON_BYTES = 64 << 20
"""Bytes of one JSON text: the safetensors header or `aliases.json`."""
MAX_JSON_VALUES = 1 << 20
"""Values of one JSON text, counting objects, arrays and scalars."""
MAX_JSON_DEPTH = 64
"""Objects and arrays within each other in a JSON text."""
