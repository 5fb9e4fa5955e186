"""``gradledger db``: what a person does with the database itself."""

from __future__ import annotations

import typer

from gradledger_monitor.cli.options import GivenDatabase, database, settings
from gradledger_monitor.store.admin import maintenance
from gradledger_monitor.workers.retention import run_retention
from gradledger_monitor.workers.runtime_overrides import RuntimeOverrides

app = typer.Typer(no_args_is_help=True, help="Look after the database.")


@app.command()
def upgrade(db: GivenDatabase = None) -> None:
    """Bring the tables up to this version. ``serve`` does it too, when it starts."""
    with database(settings(db=db).db, migrated=False) as store:
        before = maintenance.revision(store)
        store.migrate()
        typer.echo(f"{before or 'no tables'} -> {maintenance.revision(store)}")


@app.command()
def vacuum(db: GivenDatabase = None) -> None:
    """Give up what is older than the settings keep, and the room that it took."""
    given = settings(db=db)
    with database(given.db) as store:
        chosen = RuntimeOverrides(given, store)
        before = maintenance.size(store)
        removed = run_retention(store, chosen.policy(), chosen.rule_overrides())
        maintenance.vacuum(store)
        typer.echo(f"removed {removed.records:,} records and {removed.steps:,} steps")
        typer.echo(f"{_megabytes(before)} -> {_megabytes(maintenance.size(store))}")


@app.command()
def stats(db: GivenDatabase = None) -> None:
    """How much of what there is, and the room that it takes."""
    with database(settings(db=db).db, migrated=False) as store:
        for table, rows in maintenance.rows(store).items():
            typer.echo(f"{table:<20}{rows:>14,} rows")
        typer.echo(f"{'in all':<20}{_megabytes(maintenance.size(store)):>14}")


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MB"
