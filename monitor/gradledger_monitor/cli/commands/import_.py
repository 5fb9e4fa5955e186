"""``gradledger import``: spools, archives and the logs of other tools, to a service or a database.

Importing again is harmless. A file goes only when asked, when nobody writes it any more, and when
everything in it is stored.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from gradledger.delivery.http_client import Client, UploadResult
from gradledger.delivery.spool_file import SUFFIX, SpoolFile, is_run
from gradledger.delivery.uploader import BATCH_BYTES, BATCH_LINES
from gradledger.settings import Settings
from gradledger_monitor.archive import reader as archives
from gradledger_monitor.archive.format import SUFFIX as ARCHIVE
from gradledger_monitor.archive.format import DamagedArchive
from gradledger_monitor.cli import options
from gradledger_monitor.importers import detect, metric_names
from gradledger_monitor.importers.metric_log import UnreadableLog
from gradledger_monitor.ingest import decode, schema
from gradledger_monitor.runs.resolve import evaluate_all, record_batches
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.steps.ingest import store_batch
from gradledger_monitor.workers.runtime_overrides import RuntimeOverrides

Take = Callable[[list[bytes]], UploadResult]  # what takes one batch in


class Stopped(Exception):
    """The destination takes nothing."""


@dataclass(frozen=True)
class Wanted:
    """How the logs of other tools are to be read."""

    format: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    run: str | None = None
    name: str | None = None


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
        typer.Argument(
            exists=True,
            help="Spools, archives, TensorBoard events, trainer_state.json, mlruns, CSV, JSON; "
            "without any, the spool.",
        ),
    ] = None,
    url: Annotated[str | None, typer.Option(help="The service that takes them.")] = None,
    db: Annotated[str | None, typer.Option(help="Straight into this database instead.")] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete each file once all of it is stored.")
    ] = False,
    format_: Annotated[
        str | None,
        typer.Option("--format", help=f"What it is: {', '.join(detect.FORMATS)}."),
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help=f"MEANING=COLUMN of a log; meanings: {', '.join(metric_names.MEANINGS)}.",
            metavar="TEXT",
        ),
    ] = None,
    run: Annotated[str | None, typer.Option(help="The id of an imported log's run.")] = None,
    name: Annotated[str | None, typer.Option(help="What to call that run.")] = None,
) -> None:
    """Store what a spool, an archive or the log of another tool holds.

    Importing again changes nothing. Of a run that was never watched, the rules that its log allows
    are asked; the others say that they were not measured.
    """
    if url and db:
        raise typer.BadParameter("either --url or --db", param_hint="--db")
    wanted = Wanted(_format(format_), _names(map_ or []), _run_id(run), name)
    settings = Settings.from_environment(os.environ)
    imported = Imported()
    with _destination(url or settings.url, settings.token, db) as (store, take):
        try:
            for path in _files(paths, wanted) if paths else _spooled(settings.spool):
                if archives.is_archive(path):
                    _import_archive(path, store, take, imported)
                elif _is_spool(path) and wanted.format is None:
                    _import(path, take, remove, imported)
                else:
                    _import_log(path, wanted, take, imported)
        except (Stopped, DamagedArchive, UnreadableLog) as stopped:
            typer.echo(f"gradledger import: {stopped}", err=True)
            raise typer.Exit(1) from stopped
        finally:
            typer.echo(str(imported))
    raise typer.Exit(1 if imported.refused else 0)


def _format(said: str | None) -> str | None:
    if said is not None and said not in detect.FORMATS:
        known = ", ".join(detect.FORMATS)
        raise typer.BadParameter(f"there is no format {said!r}, but {known}", param_hint="--format")
    return said


def _names(said: list[str]) -> dict[str, str]:
    pairs = [(m.strip(), n.strip()) for m, _, n in (text.partition("=") for text in said)]
    for meaning, name in pairs:
        if meaning not in metric_names.MEANINGS or not name:
            known = ", ".join(metric_names.MEANINGS)
            why = f"{meaning}={name} is not MEANING=COLUMN; meanings: {known}"
            raise typer.BadParameter(why, param_hint="--map")
    return dict(pairs)


def _run_id(run: str | None) -> str | None:
    if run is not None and (len(run) > 128 or not re.match(schema.RUN_ID, run)):
        why = "up to 128 letters, digits, '.', '_' and '-'"
        raise typer.BadParameter(why, param_hint="--run")
    return run


def _spooled(spool: Path | None) -> list[Path]:
    """What waits in the spool, of which only folders may be left."""
    return sorted(spool.rglob(f"*{SUFFIX}")) if spool else []


def _files(paths: list[Path], wanted: Wanted) -> Iterator[Path]:
    for path in paths:
        if path.is_dir() and wanted.format is None:
            ours = [*path.rglob(f"*{SUFFIX}"), *path.rglob(f"*{ARCHIVE}")]
            yield from sorted(ours) if ours or not any(path.iterdir()) else [path]
        elif path.exists():
            yield path


def _is_spool(path: Path) -> bool:
    """Whether a file is made of records."""
    if path.suffix != SUFFIX or path.is_dir():
        return False
    with path.open("rb") as file:
        try:
            first = json.loads(file.readline() or b"{}")
        except ValueError:
            return True  # refused, with the reason
    return not isinstance(first, dict) or "type" in first


# ---------------------------------------------------------------- archives and foreign logs


def _import_archive(path: Path, store: Store | None, take: Take, imported: Imported) -> None:
    imported.files += 1
    if store is None:
        _give(path, archives.record_batches(path), take, imported)
        what = "what people and the service itself noted in it stays out; --db takes all of it"
        typer.echo(f"{path}: {what}", err=True)
        return
    restored = archives.restore(store, path)
    for problem in restored.problems[:1]:
        typer.echo(f"{path}: {restored.refused} refused ({problem})", err=True)
    imported.records += restored.stored + restored.already_there + restored.refused
    imported.stored += restored.stored
    imported.refused += restored.refused


def _import_log(path: Path, wanted: Wanted, take: Take, imported: Imported) -> None:
    read = detect.FORMATS[wanted.format] if wanted.format else detect.reader(path)
    found = list(read(path))
    if not found:
        raise UnreadableLog(f"{path}: no run is in it")
    if len(found) > 1 and wanted.run:
        raise UnreadableLog(f"{path}: {len(found)} runs are in it; one --run cannot name them all")
    imported.files += 1
    for logged in found:
        _give(path, record_batches(logged, wanted.names, wanted.run, wanted.name), take, imported)
        typer.echo(f"{logged.tool}: {wanted.name or logged.name}", err=True)


def _give(path: Path, given: Iterable[list[bytes]], take: Take, imported: Imported) -> None:
    for lines in given:
        answer = take(lines)
        if answer.outcome == "retry":
            raise Stopped(f"no records are taken ({answer.problem})")
        refused = len(lines) - 1 if answer.outcome == "too_large" else answer.refused
        if refused:
            typer.echo(f"{path}: {refused} refused ({answer.problem})", err=True)
        imported.records += sum(not is_run(line) for line in lines)
        imported.stored += answer.stored
        imported.refused += refused


# ---------------------------------------------------------------- spools


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
        if answer.outcome == "retry":
            raise Stopped(f"no records are taken ({answer.problem})")
        if answer.outcome == "too_large" and lines > 1:
            lines = max(1, lines // 2)
            continue
        count = sum(not is_run(line) for line in batch)
        refused = answer.refused or int(answer.outcome == "too_large")
        if refused:
            typer.echo(f"{file.path}: {refused} refused ({answer.problem})", err=True)
        imported.records += count
        imported.stored += answer.stored
        imported.refused += refused
        file.advance(count)


# ---------------------------------------------------------------- where it goes


@contextmanager
def _destination(
    url: str, token: str | None, db: str | None
) -> Iterator[tuple[Store | None, Take]]:
    if db is None:
        yield None, _into_service(url, token)
        return
    given = options.settings(db=db)
    with options.database(db) as store:
        yield store, _into_database(store)
        # no service need run on a database to look at what was imported into it
        evaluate_all(store, RuntimeOverrides(given, store).rule_overrides(), given.rank_timeout)


def _into_service(url: str, token: str | None) -> Take:
    try:
        return Client(url, token).post
    except ValueError as error:
        raise typer.BadParameter(f"{error}", param_hint="--url") from error


def _into_database(store: Store) -> Take:
    def take(lines: list[bytes]) -> UploadResult:
        done = store_batch(store, decode.read(b"".join(lines)), time.time())
        refused = done.refused
        first = f"{refused.listed[0].field}: {refused.listed[0].reason}" if refused.count else ""
        return UploadResult("accepted", done.stored, refused.count, first)

    return take
