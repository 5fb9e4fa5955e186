"""Settings of the service: what they are, where their values come from, what may be shown."""
