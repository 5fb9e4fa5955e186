"""``gradledger db``: maintenance of the database."""

from __future__ import annotations

import typer
from rich.text import Text

from gradledger_monitor.cli.options import DatabaseOption, database, settings
from gradledger_monitor.cli.tables import show, table
from gradledger_monitor.store.admin import maintenance
from gradledger_monitor.workers.retention import run_retention
from gradledger_monitor.workers.runtime_overrides import RuntimeOverrides
from gradledger_web.formatting import byte_size

app = typer.Typer(no_args_is_help=True, help="Maintain the database.")


@app.command()
def upgrade(db: DatabaseOption = None) -> None:
    """Migrate the tables to this version. ``serve`` does this at start."""
    with database(settings(db=db).db, migrated=False) as store:
        before = maintenance.revision(store)
        store.migrate()
        typer.echo(f"{before or 'no tables'} -> {maintenance.revision(store)}")


@app.command()
def vacuum(db: DatabaseOption = None) -> None:
    """Delete data beyond the retention settings, and free its disk space."""
    current = settings(db=db)
    with database(current.db) as store:
        overrides = RuntimeOverrides(current, store)
        before = maintenance.size(store)
        removed = run_retention(store, overrides.policy(), overrides.rule_overrides())
        maintenance.vacuum(store)
        typer.echo(f"deleted {removed.records:,} records and {removed.steps:,} steps")
        typer.echo(f"{byte_size(before)} -> {byte_size(maintenance.size(store))}")


@app.command()
def stats(db: DatabaseOption = None) -> None:
    """Print the number of rows in each table, and the size of the database."""
    with database(settings(db=db).db, migrated=False) as store:
        rows, size = maintenance.rows(store), maintenance.size(store)
    numbers = table("table", "rows", right=("rows",))
    for name, count in rows.items():
        numbers.add_row(name, f"{count:,}")
    show(numbers, Text(f"size of the database: {byte_size(size)}"))
