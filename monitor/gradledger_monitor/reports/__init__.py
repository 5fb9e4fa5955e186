"""What is written down of a run for people who were not there."""
