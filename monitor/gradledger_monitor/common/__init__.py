"""Small helpers that import nothing else of the service."""
