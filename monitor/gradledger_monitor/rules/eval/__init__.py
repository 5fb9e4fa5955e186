"""Rules on validation metrics."""
