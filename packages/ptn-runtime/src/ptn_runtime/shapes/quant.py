"""Shape rules of the family `quant`."""
