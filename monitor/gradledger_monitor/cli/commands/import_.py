"""``gradledger import``: spools, archives and the logs of other tools, to a service or a database.

Importing again changes nothing. ``--remove`` deletes a file only if no process writes it and all of
its records are stored.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from gradledger.delivery.http_client import UploadResult
from gradledger.delivery.spool_file import SUFFIX, SpoolFile, is_run
from gradledger.delivery.uploader import BATCH_BYTES, BATCH_LINES
from gradledger.settings import Settings
from gradledger_monitor.archive import reader as archives
from gradledger_monitor.archive.format import SUFFIX as ARCHIVE
from gradledger_monitor.archive.format import DamagedArchive
from gradledger_monitor.cli import imported_runs, options
from gradledger_monitor.cli.imported_runs import Outcomes
from gradledger_monitor.importers import detect, metric_names
from gradledger_monitor.importers.metric_log import UnreadableLog
from gradledger_monitor.ingest import decode, schema
from gradledger_monitor.runs.resolve import record_batches
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.steps.ingest import store_batch
from gradledger_monitor.workers.evaluator import evaluate_all
from gradledger_monitor.workers.runtime_overrides import RuntimeOverrides
from gradledger_web.formatting import plural

Upload = Callable[[list[bytes]], UploadResult]  # stores one batch of lines


class ImportStopped(Exception):
    """The destination does not accept records, or a file cannot be read."""


@dataclass(frozen=True)
class LogOptions:
    """How to read the logs of other tools."""

    format: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    run: str | None = None
    name: str | None = None


@dataclass
class ImportCounts:
    """The numbers of files and records: stored, stored before, or refused; and the runs."""

    files: int = 0
    records: int = 0
    stored: int = 0
    refused: int = 0
    runs: dict[str, bytes] = field(default_factory=dict)  # their run records, by id

    def add(self, lines: list[bytes], stored: int, refused: int) -> None:
        """Count the records of one batch; run headers are no records."""
        headers = [line for line in lines if is_run(line)]
        self.runs |= {str(json.loads(line).get("run")): line for line in headers}
        self.records += len(lines) - len(headers)
        self.stored += stored
        self.refused += refused

    def __str__(self) -> str:
        duplicates = self.records - self.stored - self.refused
        files, records = plural(self.files, "file"), plural(self.records, "record")
        results = f"{self.stored} stored, {duplicates} already there, {self.refused} refused"
        return f"{files}, {records}: {results}"


def import_(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            exists=True,
            help="Spools, archives, TensorBoard events, trainer_state.json, mlruns, CSV, JSON; "
            "by default, the spool.",
        ),
    ] = None,
    url: Annotated[str | None, typer.Option(help="The service to send to.")] = None,
    db: Annotated[str | None, typer.Option(help="Import into this database instead.")] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete each file after all of its records are stored.")
    ] = False,
    format_: Annotated[
        str | None,
        typer.Option("--format", help=f"The format: {', '.join(detect.FORMATS)}."),
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help=f"The column for {', '.join(metric_names.MEANINGS)}; repeatable.",
            metavar="MEANING=COLUMN",
        ),
    ] = None,
    run: Annotated[str | None, typer.Option(help="The id for the run of a log.")] = None,
    name: Annotated[str | None, typer.Option(help="The name for the run of a log.")] = None,
) -> None:
    """Import spools, archives and the logs of other tools.

    Importing again changes nothing. Of a log, only the rules are evaluated for which it has data;
    the others are not measured.
    """
    if url and db:
        raise typer.BadParameter("pass either --url or --db", param_hint="--db")
    log_options = LogOptions(_format(format_), _column_names(map_ or []), _run_id(run), name)
    settings = Settings.from_environment(os.environ)
    counts = ImportCounts()
    with _destination(url or settings.url, settings, db) as (store, upload, outcomes):
        try:
            for path in _files(paths, log_options) if paths else _spooled(settings.spool):
                if archives.is_archive(path):
                    _import_archive(path, store, upload, counts)
                elif _is_spool(path) and log_options.format is None:
                    _import_spool(path, upload, remove, counts)
                else:
                    _import_log(path, log_options, upload, counts)
        except (ImportStopped, DamagedArchive, UnreadableLog) as error:
            typer.echo(f"gradledger import: {error}", err=True)
            raise typer.Exit(1) from error
        finally:
            typer.echo(str(counts))
        for line in outcomes(counts.runs):
            typer.echo(line)
    raise typer.Exit(1 if counts.refused else 0)


def _format(name: str | None) -> str | None:
    if name is not None and name not in detect.FORMATS:
        formats = ", ".join(detect.FORMATS)
        reason = f"there is no format {name!r}. Pass one of {formats}"
        raise typer.BadParameter(reason, param_hint="--format")
    return name


def _column_names(arguments: list[str]) -> dict[str, str]:
    """The columns by meaning, from MEANING=COLUMN."""
    parts = (argument.partition("=") for argument in arguments)
    pairs = [(meaning.strip(), column.strip()) for meaning, _, column in parts]
    for meaning, column in pairs:
        if meaning not in metric_names.MEANINGS or not column:
            meanings = ", ".join(metric_names.MEANINGS)
            reason = f"{meaning}={column} is not MEANING=COLUMN; meanings: {meanings}"
            raise typer.BadParameter(reason, param_hint="--map")
    return dict(pairs)


def _run_id(run: str | None) -> str | None:
    if run is not None and (len(run) > 128 or not re.match(schema.RUN_ID, run)):
        reason = f"{run!r} is not up to 128 letters, digits, '.', '_' and '-'"
        raise typer.BadParameter(reason, param_hint="--run")
    return run


def _spooled(spool: Path | None) -> list[Path]:
    """The spool files; none if the spool is off."""
    return sorted(spool.rglob(f"*{SUFFIX}")) if spool else []


def _files(paths: list[Path], log_options: LogOptions) -> Iterator[Path]:
    """The files to import; a folder without spools and archives is a log of another tool."""
    for path in paths:
        if path.is_dir() and log_options.format is None:
            own = [*path.rglob(f"*{SUFFIX}"), *path.rglob(f"*{ARCHIVE}")]
            yield from sorted(own) if own or not any(path.iterdir()) else [path]
        elif path.exists():
            yield path


def _is_spool(path: Path) -> bool:
    """Whether a file holds records."""
    if path.suffix != SUFFIX or path.is_dir():
        return False
    with path.open("rb") as file:
        try:
            first = json.loads(file.readline() or b"{}")
        except ValueError:
            return True  # the import refuses it with the reason
    return not isinstance(first, dict) or "type" in first


# ---------------------------------------------------------------- archives and foreign logs


def _import_archive(path: Path, store: Store | None, upload: Upload, counts: ImportCounts) -> None:
    counts.files += 1
    if store is None:
        _upload_all(path, archives.record_batches(path), upload, counts)
        note = "imported without tags, notes, acknowledgements and snoozes; --db imports these, too"
        typer.echo(f"{path}: {note}", err=True)
        return
    restored = archives.restore(store, path)
    if restored.problems:
        _print_refused(path, restored.refused, restored.problems[0])
    counts.records += restored.stored + restored.already_there + restored.refused
    counts.stored += restored.stored
    counts.runs[restored.run] = b""
    counts.refused += restored.refused


def _import_log(path: Path, log_options: LogOptions, upload: Upload, counts: ImportCounts) -> None:
    read = detect.FORMATS[log_options.format] if log_options.format else detect.reader(path)
    logs = list(read(path))
    if not logs:
        raise UnreadableLog(f"{path}: this log has no run")
    if len(logs) > 1 and log_options.run:
        raise UnreadableLog(f"{path}: this log has {len(logs)} runs; --run needs a log with one")
    counts.files += 1
    for log in logs:
        names, run, name = log_options.names, log_options.run, log_options.name
        _upload_all(path, record_batches(log, names, run, name), upload, counts)
        typer.echo(f"{log.tool}: {name or log.name}", err=True)


def _upload_all(
    path: Path, batches: Iterable[list[bytes]], upload: Upload, counts: ImportCounts
) -> None:
    for lines in batches:
        result = upload(lines)
        _require_accepted(result)
        refused = len(lines) - 1 if result.outcome == "too_large" else result.refused
        _print_refused(path, refused, result.problem)
        counts.add(lines, result.stored, refused)


def _require_accepted(result: UploadResult) -> None:
    if result.outcome == "retry":
        raise ImportStopped(f"the destination accepts no records ({result.problem})")


def _print_refused(path: Path, refused: int, problem: str) -> None:
    if refused:
        typer.echo(f"{path}: {refused} refused ({problem})", err=True)


# ---------------------------------------------------------------- spools


def _import_spool(path: Path, upload: Upload, remove: bool, counts: ImportCounts) -> None:
    owned = SpoolFile.take(path)
    try:
        file = owned or SpoolFile.read(path)
    except OSError as error:
        raise ImportStopped(f"{path}: {error.strerror}") from error
    counts.files += 1
    refused_before = counts.refused
    try:
        _upload_spool(file, upload, counts)
        if remove and owned and counts.refused == refused_before:
            file.remove()
        elif remove:
            reason = "some records were refused" if owned else "a process may still write it"
            typer.echo(f"{path} is not deleted: {reason}", err=True)
    finally:
        file.close()


def _upload_spool(file: SpoolFile, upload: Upload, counts: ImportCounts) -> None:
    """Upload in batches; a batch that is too large is split, down to single records."""
    most_lines = BATCH_LINES
    while lines := file.peek(most_lines, BATCH_BYTES):
        result = upload(lines)
        _require_accepted(result)
        if result.outcome == "too_large" and most_lines > 1:
            most_lines = max(1, most_lines // 2)
            continue
        refused = result.refused or int(result.outcome == "too_large")
        _print_refused(file.path, refused, result.problem)
        counts.add(lines, result.stored, refused)
        file.advance(sum(not is_run(line) for line in lines))


# ---------------------------------------------------------------- destinations


@contextmanager
def _destination(
    url: str, settings: Settings, db: str | None
) -> Iterator[tuple[Store | None, Upload, Outcomes]]:
    if db is None:
        client = options.client(url, settings, "--url")
        yield None, client.post, imported_runs.of_service(client, url)
        return
    current = options.settings(db=db)
    with options.database(db) as store:

        def outcomes(runs: Mapping[str, bytes]) -> Iterator[str]:
            # Evaluate here: perhaps no service runs on this database.
            overrides = RuntimeOverrides(current, store).rule_overrides()
            evaluate_all(store, overrides, current.rank_timeout, runs)
            yield from imported_runs.of_database(store)(runs)

        yield store, _into_database(store), outcomes


def _into_database(store: Store) -> Upload:
    def upload(lines: list[bytes]) -> UploadResult:
        result = store_batch(store, decode.read(b"".join(lines)), time.time())
        refused = result.refused
        problem = f"{refused.listed[0].field}: {refused.listed[0].reason}" if refused.count else ""
        return UploadResult("accepted", result.stored, refused.count, problem)

    return upload
