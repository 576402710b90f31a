"""Export PyTorch models to `.ptn` packages: `export(model.eval(), (x,), "model.ptn")`.

Or, from what `torch.export.export` returned, `to_native(exported).save("model.ptn")`.
"""

from ptn_export._version import __version__
from ptn_export.errors import ExportError, ExportWarning, Problem
from ptn_export.exporting import Method, export
from ptn_export.native import NativeProgram, to_native
from ptn_export.passes import PASSES
from ptn_export.report import Report

__all__ = [
    "PASSES",
    "ExportError",
    "ExportWarning",
    "Method",
    "NativeProgram",
    "Problem",
    "Report",
    "__version__",
    "export",
    "to_native",
]
