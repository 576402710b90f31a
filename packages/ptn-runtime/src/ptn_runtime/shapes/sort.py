"""Shape rules of the family `sort`."""
