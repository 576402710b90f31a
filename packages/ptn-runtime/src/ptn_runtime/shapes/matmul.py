"""Shape rules of the family `matmul`."""
