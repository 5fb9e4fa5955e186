"""Rules on the values of the learning rate schedule."""
