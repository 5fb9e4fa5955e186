"""``gradledger export``: a run as one file that any other store takes in again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradledger_monitor.archive.format import SUFFIX
from gradledger_monitor.archive.writer import export as write
from gradledger_monitor.cli import options
from gradledger_monitor.cli.options import GivenDatabase
from gradledger_monitor.notebooks import tables
from gradledger_monitor.runs.resolve import find_run
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import dump
from gradledger_monitor.store.runs.queries import UnknownRun


def export(
    run: Annotated[str, typer.Argument(help="The run's id, or its name.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help=f"The file; by default RUN{SUFFIX}.")
    ] = None,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="The figures of all steps as Parquet instead.")
    ] = False,
    db: GivenDatabase = None,
) -> None:
    """Write a run to a file, with all that its processes and people said of it.

    `gradledger import FILE --db URL` brings it back, whole, on any database.
    """
    with options.database(options.settings(db=db).db) as store:
        try:
            run = find_run(store, run)
        except UnknownRun as error:
            raise typer.BadParameter(f"there is no run {run!r} in this database") from error
        path = output or Path(run + (".parquet" if parquet else SUFFIX))
        try:
            if parquet:
                return _parquet(store, run, path)
            written = write(store, run, path)
        except OSError as error:
            typer.echo(f"gradledger export: {path}: {error.strerror}", err=True)
            raise typer.Exit(1) from error
        typer.echo(f"{path}: {written.steps} records of steps, {path.stat().st_size} bytes")
        if last := dump.last_pruned_step(store, run):
            why = f"what ranks sent up to step {last} had been removed to make room"
            typer.echo(f"gradledger export: {why}; its figures and findings are there", err=True)


def _parquet(store: Store, run: str, path: Path) -> None:
    """The first optimizer's; ``gradledger.load`` has them all."""
    try:
        count = tables.to_parquet(tables.steps(store, run, 0), path, {"run": run})
    except ModuleNotFoundError as error:
        raise typer.BadParameter(str(error), param_hint="--parquet") from error
    typer.echo(f"{path}: {count} steps")
