"""Shape rules of the family `reduction`."""
