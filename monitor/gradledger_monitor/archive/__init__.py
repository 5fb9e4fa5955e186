"""Runs as files: one archive contains one run, and any store can import it."""
