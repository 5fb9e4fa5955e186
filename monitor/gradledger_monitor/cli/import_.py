"""``gradledger import``: what a spool or an export holds, into a service or a database.

Importing again is harmless. A file goes only when asked, when nobody writes it any more, and when
everything in it is stored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.exc import ArgumentError

from gradledger.delivery.client import Answer, Client
from gradledger.delivery.courier import BATCH_BYTES, BATCH_LINES
from gradledger.delivery.spool_file import SUFFIX, SpoolFile, is_run
from gradledger.settings import Settings
from gradledger_monitor import batches
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.writing import store_batch

Take = Callable[[list[bytes]], Answer]  # what takes one batch in


class Stopped(Exception):
    """The destination takes nothing."""


@dataclass
class Imported:
    """What became of the records."""

    files: int = 0
    records: int = 0
    stored: int = 0
    refused: int = 0

    def __str__(self) -> str:
        again = self.records - self.stored - self.refused
        counts = f"{self.stored} stored, {again} already there, {self.refused} refused"
        return f"{self.files} files, {self.records} records: {counts}"


def import_(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(exists=True, help="Files or folders of JSON lines; else the spool."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="The service that takes them.")] = None,
    db: Annotated[str | None, typer.Option(help="Straight into this database instead.")] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete each file once all of it is stored.")
    ] = False,
) -> None:
    """Store what a spool or an export holds. Importing again changes nothing."""
    if url and db:
        raise typer.BadParameter("either --url or --db", param_hint="--db")
    settings = Settings.from_environment(os.environ)
    take = _into_database(db) if db else _into_service(url or settings.url, settings.token)
    imported = Imported()
    try:
        for path in _files(paths or [p for p in [settings.spool] if p]):
            _import(path, take, remove, imported)
    except Stopped as stopped:
        typer.echo(f"gradledger import: {stopped}", err=True)
        raise typer.Exit(1) from stopped
    finally:
        typer.echo(str(imported))
    raise typer.Exit(1 if imported.refused else 0)


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob(f"*{SUFFIX}"))
        elif path.exists():
            yield path


def _import(path: Path, take: Take, remove: bool, imported: Imported) -> None:
    owned = SpoolFile.take(path)
    try:
        file = owned or SpoolFile.read(path)
    except OSError as error:
        raise Stopped(f"{path}: {error.strerror}") from error
    imported.files += 1
    refused = imported.refused
    try:
        _send(file, take, imported)
        if remove and owned and imported.refused == refused:
            file.remove()
        elif remove:
            why = "some of it was refused" if owned else "a process may still write it"
            typer.echo(f"{path} stays: {why}", err=True)
    finally:
        file.close()


def _send(file: SpoolFile, take: Take, imported: Imported) -> None:
    lines = BATCH_LINES
    while batch := file.peek(lines, BATCH_BYTES):
        answer = take(batch)
        if answer.fate == "retry":
            raise Stopped(f"no records are taken ({answer.problem})")
        if answer.fate == "too_large" and lines > 1:
            lines = max(1, lines // 2)
            continue
        count = sum(not is_run(line) for line in batch)
        refused = answer.refused or int(answer.fate == "too_large")
        if refused:
            typer.echo(f"{file.path}: {refused} refused ({answer.problem})", err=True)
        imported.records += count
        imported.stored += answer.stored
        imported.refused += refused
        file.advance(count)


# ---------------------------------------------------------------- where it goes


def _into_service(url: str, token: str | None) -> Take:
    try:
        return Client(url, token).post
    except ValueError as error:
        raise typer.BadParameter(f"{error}", param_hint="--url") from error


def _into_database(url: str) -> Take:
    try:
        store = Store(url)
        store.migrate()
    except (ValueError, ArgumentError, ModuleNotFoundError) as error:
        raise typer.BadParameter(f"{error}", param_hint="--db") from error

    def take(lines: list[bytes]) -> Answer:
        done = store_batch(store, batches.read(b"".join(lines)), time.time())
        first = f"{done.refused[0].field}: {done.refused[0].reason}" if done.refused else ""
        return Answer("accepted", done.stored, len(done.refused), first)

    return take
