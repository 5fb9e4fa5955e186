"""One optimizer step as data, and the arithmetic on it (pure)."""
