"""Shape rules of the family `layout`."""
