"""Rules on the training loss."""
