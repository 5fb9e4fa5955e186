"""Rules on the gradient norm."""
