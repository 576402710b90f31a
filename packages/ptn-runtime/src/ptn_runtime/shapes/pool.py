"""Shape rules of the family `pool`."""
