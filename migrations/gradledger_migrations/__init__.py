"""The history of the database: an Alembic environment that travels in the wheel."""
