"""Shape rules of the family `control`."""
