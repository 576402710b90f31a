"""Shape rules of the family `conv`."""
