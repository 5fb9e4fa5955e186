"""Alerts: what is due, the outbox, channels, acknowledgements."""
