"""HTTP: records in, runs out, live events, and what operators ask."""
