"""Observes what ranks exchange: collectives, wrappers, the gradients of each rank alone."""
