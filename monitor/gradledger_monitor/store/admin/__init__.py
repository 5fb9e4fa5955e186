"""Operation of the database: tokens, sessions, retention, maintenance, overrides."""
