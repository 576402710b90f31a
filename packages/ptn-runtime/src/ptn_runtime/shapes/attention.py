"""Shape rules of the family `attention`."""
