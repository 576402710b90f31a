"""Shape rules of the family `norm`."""
