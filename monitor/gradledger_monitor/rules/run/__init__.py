"""Rules on the progress of a run."""
