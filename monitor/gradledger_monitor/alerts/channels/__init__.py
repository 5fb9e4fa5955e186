"""Ways to reach a person. Each sends one document once, and says what became of it."""
