"""The database: tables, writing, reading. Nothing outside this package speaks SQL."""
