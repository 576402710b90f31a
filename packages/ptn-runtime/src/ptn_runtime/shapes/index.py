"""Shape rules of the family `index`."""
