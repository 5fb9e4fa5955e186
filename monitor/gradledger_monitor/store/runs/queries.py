"""Queries of runs and their evaluations, for pages, the API and the commands."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, exists, func, or_, select

from gradledger_monitor.evaluation.finding_code import with_code
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.findings import Acknowledgement, EvaluationResult, Finding, TreeNode
from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.packing import read_record, unpack_records
from gradledger_monitor.store.runs import code_locations
from gradledger_monitor.store.steps.chunks import holding
from gradledger_monitor.store.tables import (
    acknowledgements,
    chunks,
    evaluations,
    facts,
    findings,
    progress,
    ranks,
    runs,
)


class UnknownRun(LookupError):
    """No run has this id."""

    def __str__(self) -> str:
        return f"there is no run {self.args[0]!r}" if self.args else "there is no such run"


@dataclass(frozen=True)
class RunRow:
    """A run as lists show it."""

    id: str
    name: str
    project: str
    started: float
    last_seen: float
    ended: bool
    world_size: int
    verdict: str
    primary: str | None
    steps: int
    tokens: int
    optimizers: list[str]
    config: dict[str, Any]
    environment: dict[str, str]
    # A part of the verdict is of an earlier evaluation, because records are pruned.
    earlier_version: bool
    # Why the run was evaluated again, or could not be, in a sentence.
    evaluation_note: str | None


_ROW = {name: name for name in RunRow.__dataclass_fields__} | {"primary": "primary_title"}


def run_row(row: Row[Any]) -> RunRow:
    """A run, from a row of ``runs``."""
    return RunRow(**{name: row._mapping[column] for name, column in _ROW.items()})


def list_runs(
    store: Store, limit: int = 50, offset: int = 0, search: str | None = None
) -> list[RunRow]:
    """Runs, those with the latest data first; ``search`` matches name, project and id."""
    query = select(runs).order_by(runs.c.last_seen.desc(), runs.c.key.desc())
    if search:
        columns = (runs.c.name, runs.c.project, runs.c.id)
        query = query.where(or_(*(c.icontains(search, autoescape=True) for c in columns)))
    with store.reading() as connection:
        return [run_row(row) for row in connection.execute(query.limit(limit).offset(offset))]


def get_run(store: Store, run: str) -> RunRow | None:
    """A run; None if there is none with this id."""
    with store.reading() as connection:
        row = connection.execute(select(runs).where(runs.c.id == run)).first()
    return None if row is None else run_row(row)


def run_info(store: Store, run: str) -> RunInfo:
    """The properties of a run that facts and rules depend on. Raises ``UnknownRun``."""
    with store.reading() as connection:
        return info_of(require_run(connection, run))


def info_of(row: Row[Any]) -> RunInfo:
    """The properties of a run, from a row of ``runs``."""
    return RunInfo(
        run=row.id,
        name=row.name,
        world_size=row.world_size,
        optimizers=row.optimizers,
        contract=row.contract,
        declared_scale=row.declared_scale,
        environment=row.environment,
        config=row.config,
    )


def require_run(connection: Connection, run: str) -> Row[Any]:
    """The row of a run; raises ``UnknownRun``."""
    row = connection.execute(select(runs).where(runs.c.id == run)).first()
    if row is None:
        raise UnknownRun(run)
    return row


def step_records(store: Store, run: str, optimizer: int, step: int) -> dict[int, schema.StepRecord]:
    """The records of one step by rank."""
    with store.reading() as connection:
        key = connection.scalar(select(runs.c.key).where(runs.c.id == run))
        held = list(holding(connection, key, optimizer, step - 1, step)) if key else []
    records = {chunk.rank: unpack_records(chunk.records).get(step) for chunk in held}
    return {rank: read_record(raw) for rank, raw in sorted(records.items()) if raw is not None}


@dataclass(frozen=True)
class QuarantineEntry:
    """A step that could not be evaluated; ``reason`` is a sentence that names it."""

    optimizer: int
    step: int
    reason: str


@dataclass(frozen=True)
class QuarantinedSteps:
    """The number of quarantined steps of a run, and the first of them."""

    count: int
    steps: list[QuarantineEntry]


MOST_QUARANTINED = 100  # that are listed


def quarantined_steps(store: Store, run: str, most: int = MOST_QUARANTINED) -> QuarantinedSteps:
    """The quarantined steps of a run, by optimizer and step; at most ``most`` are listed."""
    of_run = (facts.c.run == _key_of(run), facts.c.failure.is_not(None))
    columns = (facts.c.optimizer, facts.c.step, facts.c.failure)
    first = select(*columns).where(*of_run).order_by(*columns[:2]).limit(most)
    with store.reading() as connection:
        steps = [
            QuarantineEntry(optimizer=row.optimizer, step=row.step, reason=row.failure)
            for row in connection.execute(first)
        ]
        if len(steps) < most:
            return QuarantinedSteps(len(steps), steps)
        count = connection.scalar(select(func.count()).select_from(facts).where(*of_run))
        return QuarantinedSteps(count or 0, steps)


def step_failure(store: Store, run: str, optimizer: int, step: int) -> str | None:
    """Why a step is quarantined; None if it is not."""
    of_step = (facts.c.optimizer == optimizer, facts.c.step == step)
    query = select(facts.c.failure).where(facts.c.run == _key_of(run), *of_step)
    with store.reading() as connection:
        return connection.scalar(query)


def _key_of(run: str) -> ColumnElement[int]:
    return select(runs.c.key).where(runs.c.id == run).scalar_subquery()


# ---------------------------------------------------------------- evaluation


def evaluation(store: Store, run: str, now: float | None = None) -> EvaluationResult:
    """The stored evaluation of a run; ``incomplete`` if nothing is evaluated yet.

    ``now`` (Unix seconds, by default the clock) decides which acknowledgements have expired.
    """
    with store.reading() as connection:
        key = require_run(connection, run).key
        row = connection.execute(select(evaluations).where(evaluations.c.run == key)).first()
        findings_of_run = current_findings(connection, key, time.time() if now is None else now)
    if row is None:
        return EvaluationResult("incomplete", findings_of_run, [], {})
    tree = [TreeNode(**node) for node in row.tree]
    return EvaluationResult(row.verdict, findings_of_run, tree, row.coverage)


def current_findings(connection: Connection, key: int, now: float) -> list[Finding]:
    """The findings of a run, with acknowledgements that have not expired, and the script's code."""
    findings_of_run = [_finding(row, now) for row in connection.execute(_findings_of(key))]
    located = code_locations.of_run(connection, key) if findings_of_run else {}
    return with_code(findings_of_run, located)


def _findings_of(key: int) -> Select[Any]:
    """Findings, each joined with an acknowledgement made since it began."""
    c = acknowledgements.c
    of_finding = and_(
        c.run == findings.c.run,
        c.rule == findings.c.rule,
        c.optimizer == findings.c.optimizer,
        c.last_step >= findings.c.since_step,
    )
    query = select(findings, c.note, c.by, c.at, c.until)
    query = query.outerjoin(acknowledgements, of_finding)
    return query.where(findings.c.run == key).order_by(findings.c.position)


def _finding(row: Row[Any], now: float) -> Finding:
    names = Finding.__dataclass_fields__.keys() - {"acknowledged", "code"}
    acknowledged = None
    if row.note is not None and (row.until is None or now < row.until):
        acknowledged = Acknowledgement(note=row.note, by=row.by, at=row.at, until=row.until)
    return Finding(**{name: row._mapping[name] for name in names}, acknowledged=acknowledged)


def ranks_without_records(store: Store, run: str) -> list[int]:
    """The ranks of a run that never sent anything."""
    with store.reading() as connection:
        row = require_run(connection, run)
        present = set(connection.scalars(select(ranks.c.rank).where(ranks.c.run == row.key)))
    return [rank for rank in range(row.world_size) if rank not in present]


def last_steps_of_ranks(
    store: Store, run: str, optimizer: int, before: int, of_ranks: Sequence[int]
) -> dict[int, int | None]:
    """The last step before one that each of these ranks sent a record of; None: not known.

    Without the ranks that have records of other optimizers only: they may not have this one.
    """
    of_rank = (chunks.c.run == ranks.c.run, chunks.c.rank == ranks.c.rank)
    last = select(func.max(chunks.c.last)).where(*of_rank, chunks.c.optimizer == optimizer)
    optimizers = select(progress.c.optimizer).where(progress.c.run == ranks.c.run)
    of_any = exists().where(*of_rank, chunks.c.optimizer.in_(optimizers.correlate(ranks)))
    query = select(ranks.c.rank, last.correlate(ranks).scalar_subquery().label("last"))
    query = query.add_columns(of_any.correlate(ranks).label("of_any"))
    query = query.where(ranks.c.run == _key_of(run), ranks.c.rank.in_(of_ranks))
    with store.reading() as connection:
        rows = connection.execute(query.order_by(ranks.c.rank)).all()
    return {
        row.rank: row.last if row.last is not None and row.last < before else None
        for row in rows
        if row.last is not None or not row.of_any
    }


def last_evaluated_steps(store: Store, run: str) -> dict[int, int]:
    """The last evaluated step of each optimizer that has one."""
    query = select(progress.c.optimizer, progress.c.step).where(
        progress.c.run == _key_of(run), progress.c.step > 0
    )
    with store.reading() as connection:
        return dict(connection.execute(query).all())
