"""Rules on the effective batch size."""
