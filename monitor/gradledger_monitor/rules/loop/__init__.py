"""Rules on the training loop: zeroing, accumulation, clipping and steps."""
