"""Shape rules of the family `resample`."""
