"""Alerts: what is to be said of findings, to whom and when (pure), and how it gets there."""
