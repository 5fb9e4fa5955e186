"""Runs: lists, summaries, tags, checkpoints, and runs as a whole."""
