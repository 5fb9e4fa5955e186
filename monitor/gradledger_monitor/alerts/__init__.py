"""Alerts: which findings are sent to whom and when (pure), and their delivery."""
