"""Programs of frameworks with a mistake, as those of ``museum.fixes``."""
