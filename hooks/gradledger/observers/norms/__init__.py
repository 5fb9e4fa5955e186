"""Norms of the gradients, of all together and by layer."""
