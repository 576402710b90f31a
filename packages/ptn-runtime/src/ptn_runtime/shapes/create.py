"""Shape rules of the family `create`."""
