"""The database: tables, writing, reading, retention."""
