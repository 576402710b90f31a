"""A model that was loaded before `os.fork` works in the child, whose threads are its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os
import numpy as np
import ptn_runtime
from ptn_runtime.conformance.programs import MethodBuilder, pack, static_meta

weight = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
builder = MethodBuilder("forward")
builder.constant("weight", weight)
builder.input("x", 64, 512)
meta = static_meta(np.zeros((64, 256), np.float32))
builder.call("y", "aten.linear.default", meta, input="x", weight="weight", bias=None)
builder.result("y")
model = ptn_runtime.load(pack([builder.build()], {"weight": weight}), engine="ggml", threads=2)
x = np.random.default_rng(1).standard_normal((64, 512)).astype(np.float32)
expected = model(x)  # enough work for several threads
child = os.fork()
if child == 0:
    code = 1
    try:
        right = np.array_equal(model(x), expected) and np.array_equal(model.session()(x), expected)
        model.close()
        code = 0 if right else 2
    finally:
        os._exit(code)
idle = os.fork()
if idle == 0:  # frees what it never used
    model.close()
    os._exit(0)
codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in (child, idle)]
assert np.array_equal(model(x), expected)
print(codes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_runs_and_frees_the_parents_model() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[0, 0]\n", done.stderr
