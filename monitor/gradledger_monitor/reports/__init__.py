"""The reports of a run: verdicts as JSON and in a terminal, and post-mortems."""
