"""Rules on the steps of the LR scheduler."""
