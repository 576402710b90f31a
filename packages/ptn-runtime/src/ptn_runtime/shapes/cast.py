"""Shape rules of the family `cast`."""
