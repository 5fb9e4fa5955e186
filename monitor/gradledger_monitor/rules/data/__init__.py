"""Rules on the order of the data."""
