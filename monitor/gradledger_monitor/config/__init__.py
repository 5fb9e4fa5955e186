"""Settings of the service: definitions, sources of values, redaction."""
