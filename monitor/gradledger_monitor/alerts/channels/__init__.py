"""The kinds of channels. Each module sends one document once and returns the result."""
