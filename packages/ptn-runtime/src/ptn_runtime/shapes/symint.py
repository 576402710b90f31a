"""Shape rules of the family `symint`."""
