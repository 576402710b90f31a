"""Export PyTorch models to `.ptn` packages: `to_native(torch.export.export(model, inputs)).save("model.ptn")`."""

from ptn_export._version import __version__
from ptn_export.errors import ExportError, ExportWarning, Problem
from ptn_export.native import NativeProgram, to_native
from ptn_export.passes import PASSES
from ptn_export.report import Report

__all__ = ["PASSES", "ExportError", "ExportWarning", "NativeProgram", "Problem", "Report", "__version__", "to_native"]
