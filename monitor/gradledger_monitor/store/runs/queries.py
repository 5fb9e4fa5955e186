"""What pages, the API and the commands read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, or_, select

from gradledger_monitor.ingest import schema
from gradledger_monitor.model.findings import Acknowledgement, EvaluationResult, Finding, TreeNode
from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.packing import read_record, unpack_records
from gradledger_monitor.store.steps import chunks
from gradledger_monitor.store.tables import (
    acknowledgements,
    evaluations,
    facts,
    findings,
    progress,
    runs,
)


class UnknownRun(LookupError):
    """No run has this id."""


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
    # Part of the verdict is of an earlier evaluation: the records are pruned.
    earlier_version: bool
    # Why the run was evaluated again, or could not be, in a sentence.
    evaluation_note: str | None


_ROW = {name: name for name in RunRow.__dataclass_fields__} | {"primary": "primary_title"}


def run_row(row: Row[Any]) -> RunRow:
    """The same, from a row of ``runs``."""
    return RunRow(**{name: row._mapping[column] for name, column in _ROW.items()})


def list_runs(
    store: Store, limit: int = 50, offset: int = 0, search: str | None = None
) -> list[RunRow]:
    """Runs, the last heard of first; ``search`` looks in name, project and id."""
    query = select(runs).order_by(runs.c.last_seen.desc(), runs.c.key.desc())
    if search:
        columns = (runs.c.name, runs.c.project, runs.c.id)
        query = query.where(or_(*(c.icontains(search, autoescape=True) for c in columns)))
    with store.reading() as connection:
        return [run_row(row) for row in connection.execute(query.limit(limit).offset(offset))]


def get_run(store: Store, run: str) -> RunRow | None:
    """One run, None when nobody has heard of it."""
    with store.reading() as connection:
        row = connection.execute(select(runs).where(runs.c.id == run)).first()
    return None if row is None else run_row(row)


def run_info(store: Store, run: str) -> RunInfo:
    """What facts and rules may know of a run."""
    with store.reading() as connection:
        return info_of(require_run(connection, run))


def info_of(row: Row[Any]) -> RunInfo:
    """The same, from a row of ``runs``."""
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
    """What each rank sent for one step."""
    with store.reading() as connection:
        key = connection.scalar(select(runs.c.key).where(runs.c.id == run))
        found = list(chunks.holding(connection, key, optimizer, step - 1, step)) if key else []
    records = {chunk.rank: unpack_records(chunk.records).get(step) for chunk in found}
    return {rank: read_record(raw) for rank, raw in sorted(records.items()) if raw is not None}


@dataclass(frozen=True)
class QuarantinedStep:
    """A step that could not be evaluated; ``reason`` is a sentence that names it."""

    optimizer: int
    step: int
    reason: str


@dataclass(frozen=True)
class QuarantinedSteps:
    """How many steps of a run could not be evaluated, and the first of them."""

    count: int
    steps: list[QuarantinedStep]


MOST_QUARANTINED = 100  # that are listed


def quarantined_steps(store: Store, run: str, most: int = MOST_QUARANTINED) -> QuarantinedSteps:
    """The steps of a run that could not be evaluated, by optimizer and step."""
    of_run = (facts.c.run == _key_of(run), facts.c.failure.is_not(None))
    columns = (facts.c.optimizer, facts.c.step, facts.c.failure)
    first = select(*columns).where(*of_run).order_by(*columns[:2]).limit(most)
    with store.reading() as connection:
        steps = [QuarantinedStep(*row) for row in connection.execute(first)]
        if len(steps) < most:
            return QuarantinedSteps(len(steps), steps)
        count = connection.scalar(select(func.count()).select_from(facts).where(*of_run))
        return QuarantinedSteps(count or 0, steps)


def step_failure(store: Store, run: str, optimizer: int, step: int) -> str | None:
    """Why one step could not be evaluated; None for any other."""
    of_step = (facts.c.optimizer == optimizer, facts.c.step == step)
    query = select(facts.c.failure).where(facts.c.run == _key_of(run), *of_step)
    with store.reading() as connection:
        return connection.scalar(query)


def _key_of(run: str) -> ColumnElement[int]:
    return select(runs.c.key).where(runs.c.id == run).scalar_subquery()


# ---------------------------------------------------------------- judgement


def evaluation(store: Store, run: str, now: float | None = None) -> EvaluationResult:
    """What the rules say about a run so far; ``incomplete`` before anything was judged.

    ``now`` (Unix seconds, by default the clock) decides which acknowledgements have run out.
    """
    with store.reading() as connection:
        key = require_run(connection, run).key
        row = connection.execute(select(evaluations).where(evaluations.c.run == key)).first()
        found = current_findings(connection, key, time.time() if now is None else now)
    if row is None:
        return EvaluationResult("incomplete", found, [], {})
    tree = [TreeNode(**node) for node in row.tree]
    return EvaluationResult(row.verdict, found, tree, row.coverage)


def current_findings(connection: Connection, key: int, now: float) -> list[Finding]:
    """The findings of a run, with what was said of them and has not run out."""
    return [_finding(one, now) for one in connection.execute(_findings_of(key))]


def _findings_of(key: int) -> Select[Any]:
    """Findings, each beside what was said of it since it began."""
    said = acknowledgements.c
    about = and_(
        said.run == findings.c.run,
        said.rule == findings.c.rule,
        said.optimizer == findings.c.optimizer,
        said.last_step >= findings.c.since_step,
    )
    query = select(findings, said.note, said.by, said.at, said.until)
    query = query.outerjoin(acknowledgements, about)
    return query.where(findings.c.run == key).order_by(findings.c.position)


def _finding(row: Row[Any], now: float) -> Finding:
    names = Finding.__dataclass_fields__.keys() - {"acknowledged"}
    said = None
    if row.note is not None and (row.until is None or now < row.until):
        said = Acknowledgement(row.note, row.by, row.at, row.until)
    return Finding(**{name: row._mapping[name] for name in names}, acknowledged=said)


def last_evaluated_steps(store: Store, run: str) -> dict[int, int]:
    """The last judged step of each optimizer that has one."""
    query = select(progress.c.optimizer, progress.c.step).where(
        progress.c.run == _key_of(run), progress.c.step > 0
    )
    with store.reading() as connection:
        return dict(connection.execute(query).all())
