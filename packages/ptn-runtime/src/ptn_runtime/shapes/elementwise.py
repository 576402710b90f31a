"""Shape rules of the family `elementwise`."""
