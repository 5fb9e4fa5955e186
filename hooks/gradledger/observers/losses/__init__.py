"""Observes losses: how each one reduces, over how many tokens, and with what weight."""
