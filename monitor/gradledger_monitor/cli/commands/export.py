"""``gradledger export``: write a run to an archive that any database can import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradledger_monitor.archive.format import SUFFIX
from gradledger_monitor.archive.writer import export as write
from gradledger_monitor.cli import options
from gradledger_monitor.cli.options import DatabaseOption
from gradledger_monitor.notebooks import tables
from gradledger_monitor.runs.resolve import find_run
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import dump
from gradledger_monitor.store.runs.queries import UnknownRun
from gradledger_web.formatting import byte_size, plural


def export(
    run: Annotated[str, typer.Argument(help="The id or name of the run.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help=f"The file; by default RUN{SUFFIX}.")
    ] = None,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Write the figures of all steps as Parquet instead.")
    ] = False,
    db: DatabaseOption = None,
) -> None:
    """Write a run to an archive, with its tags and acknowledgements.

    `gradledger import FILE --db URL` restores it in any database.
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
        typer.echo(f"{path}: {written.steps} step records, {byte_size(path.stat().st_size)}")
        if last := dump.last_pruned_step(store, run):
            note = (
                f"the records up to step {last} are pruned; their figures and findings are included"
            )
            typer.echo(f"gradledger export: {note}", err=True)


def _parquet(store: Store, run: str, path: Path) -> None:
    """The steps of the first optimizer; ``gradledger.load`` reads the others."""
    try:
        count = tables.to_parquet(tables.steps(store, run, 0), path, {"run": run})
    except ModuleNotFoundError as error:
        raise typer.BadParameter(str(error), param_hint="--parquet") from error
    typer.echo(f"{path}: {plural(count, 'step')}")
