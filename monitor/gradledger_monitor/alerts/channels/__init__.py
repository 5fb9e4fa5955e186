"""The kinds of channels, each of which sends one document once, and what they share."""
