"""The losses of a window: their names, the weights of their tokens, and what a loop reports."""
