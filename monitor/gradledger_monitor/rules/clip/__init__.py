"""Rules on gradient clipping."""
