"""What operators see: logs, metrics, readiness."""
