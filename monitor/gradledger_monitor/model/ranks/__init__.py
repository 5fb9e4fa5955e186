"""Several ranks: which of them share data, and how their gradients were combined."""
