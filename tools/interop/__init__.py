"""Compares ptn with executorch, in both directions: `tools/write_compatibility.py` runs it.

Needs executorch 1.5.1, which pins much of its environment and is large; `nox -s interop` makes one for it alone.
"""
