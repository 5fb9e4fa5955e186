"""Evaluates the steps of a run: its state, snapshots of it, findings and a verdict (pure)."""
