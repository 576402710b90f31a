"""The family `symint`: a tensor's only element as a number."""

from __future__ import annotations

from ptn_runtime.reference.registry import Array, Outputs, kernel


@kernel("aten._local_scalar_dense.default")
def local_scalar_dense(out: Outputs, self: Array) -> Array:
    return self.reshape(())
