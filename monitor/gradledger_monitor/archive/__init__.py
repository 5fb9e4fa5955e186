"""Runs as files: one archive holds one run, and any store takes it in."""
