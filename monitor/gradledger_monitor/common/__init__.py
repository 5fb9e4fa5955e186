"""Small helpers that depend on nothing else of the service."""
