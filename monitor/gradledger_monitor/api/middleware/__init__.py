"""Middleware for every request: id and log, host and origin, scope and rate, body size, headers."""
