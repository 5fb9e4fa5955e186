"""What the evaluator writes: one evaluation pass of a run, in one transaction.

Three counters of a run keep this right without a lock while the rules work:

- ``revision`` counts the batches that ingest stored. ``evaluated_revision`` is the one up to which
  everything is evaluated: a run with a larger ``revision`` is pending.
- ``generation`` counts evaluations and rewinds. An evaluator reads it, evaluates, and writes only
  if it is still the same, in an UPDATE that increments it. If it is not, then another process
  evaluated the run, or a late record made ingest rewind it: ``commit`` raises
  ``EvaluationConflict`` and the evaluator starts again from the database.
- A claim (``claims.py``) only keeps two processes from doing the same work. It may be lost at any
  time; the generation alone decides.

A record may also arrive for a step that is being evaluated without it. To ingest it is not late,
because the progress is not written yet. So ``commit`` counts the records of such steps again, after
the UPDATE has locked the row of the run: ingest locks the same row before it stores records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, insert, select, update

from gradledger_monitor.common import clock
from gradledger_monitor.evaluation.evaluated_step import EvaluatedStep, OptimizerStep
from gradledger_monitor.evaluation.evaluator_version import version
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.model.chart_metrics import CHART_METRICS
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.numbers import MAX_INT64
from gradledger_monitor.store import dialects
from gradledger_monitor.store.alerts import due
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.dialects import without_nul
from gradledger_monitor.store.evaluation import snapshots
from gradledger_monitor.store.evaluation.pending import RunStatus
from gradledger_monitor.store.steps import chunks, curves
from gradledger_monitor.store.tables import (
    evaluations,
    facts,
    findings,
    inactivity,
    progress,
    runs,
)

FACTS_KEY = ("run", "optimizer", "step")
FACTS = (*FACTS_KEY, "time", "ranks", "failure", *CHART_METRICS)


class EvaluationConflict(Exception):
    """Another process evaluated the run, or a late record arrived, during this evaluation."""


@dataclass(frozen=True)
class EvaluationUpdate:
    """The result of one evaluation pass of a run, to be written in one transaction."""

    previous_progress: dict[int, int]  # last evaluated step by optimizer, before this pass
    evaluated_steps: list[EvaluatedStep]
    evaluation: EvaluationResult | None  # None keeps the stored one
    progress: dict[int, int]
    steps: int
    tokens: int
    waiting_since: float | None
    finished: bool  # nothing more is ready at the revision of the status
    incomplete_optimizers: set[int]  # whose steps were evaluated without all records
    inactivity: tuple[OptimizerStep, Inactivity] | None = None
    stall_at: float | None = None
    note: str | None = None  # why the run was evaluated again; None keeps the stored one


def commit(
    store: Store, status: RunStatus, result: EvaluationUpdate, state: RunState | None, stamp: str
) -> None:
    """Write an evaluation with everything that it depends on, or nothing.

    Raises ``EvaluationConflict``. If a ``state`` is passed, it is saved in the same transaction,
    with the stamp of what it depends on.
    """
    with store.writing() as connection:
        _update_run(connection, status, result)
        for optimizer in result.incomplete_optimizers:
            _check_record_count(connection, status, result, optimizer)
        _write_progress(connection, status, result.progress)
        _write_facts(connection, status.key, result.evaluated_steps)
        curves.update_buckets(connection, status.key, result.evaluated_steps)
        if result.inactivity is not None:
            _write_inactivity(connection, status.key, *result.inactivity)
        if result.evaluation is not None:
            _write_evaluation(connection, status.key, result.evaluation)
            due.request(connection, status.key, result.evaluation.findings, clock.now())
        if state is not None:
            snapshots.write(connection, status.key, state, stamp)


def save_snapshot(store: Store, status: RunStatus, state: RunState, stamp: str) -> None:
    """Save the state of a run, unless it was evaluated or rewound in the meantime."""
    with store.writing() as connection:
        if _is_unchanged(connection, status):
            snapshots.write(connection, status.key, state, stamp)


def save_carried(store: Store, status: RunStatus, state: RunState, stamp: str, note: str) -> None:
    """Save, as the base, a state that carries an earlier evaluation, and mark the run."""
    marks = {"earlier_version": True, "evaluation_note": note, "evaluator": version()}
    with store.writing() as connection:
        if _is_unchanged(connection, status):
            snapshots.write(connection, status.key, state, stamp, base=True)
            connection.execute(update(runs).where(runs.c.key == status.key).values(marks))


def _is_unchanged(connection: Connection, status: RunStatus) -> bool:
    query = select(runs.c.key).where(*_same_generation(status)).with_for_update()
    return connection.execute(query).first() is not None


def _same_generation(status: RunStatus) -> tuple[ColumnElement[bool], ...]:
    # SQLite may use the key of a deleted run again
    same_run = runs.c.key == status.key, runs.c.id == status.info.run
    return (*same_run, runs.c.generation == status.generation)


def _update_run(connection: Connection, status: RunStatus, result: EvaluationUpdate) -> None:
    values: dict[str, Any] = {
        "generation": status.generation + 1,
        "rewind": False,
        "waiting_since": result.waiting_since,
        "stall_at": result.stall_at,
        "steps": min(result.steps, MAX_INT64),
        "tokens": result.tokens,
        "evaluator": version(),
    }
    if result.note is not None:
        values["evaluation_note"] = result.note
    if result.finished:
        values["evaluated_revision"] = status.revision
    if result.evaluation is not None:
        values["verdict"] = result.evaluation.verdict
        values["primary_title"] = _primary_title(result.evaluation)
    matching = update(runs).where(*_same_generation(status))
    if connection.execute(matching.values(values)).rowcount != 1:
        raise EvaluationConflict


def _primary_title(evaluation: EvaluationResult) -> str | None:
    titles = (f.title for f in evaluation.findings if f.inhibited_by is None)
    title = next(titles, None)
    return None if title is None else without_nul(title)


def _check_record_count(
    connection: Connection, status: RunStatus, result: EvaluationUpdate, optimizer: int
) -> None:
    """Raise ``EvaluationConflict`` if a record arrived for a step that was evaluated without it."""
    evaluated = sum(step.ranks for step in result.evaluated_steps if step.optimizer == optimizer)
    before, last = result.previous_progress.get(optimizer, 0), result.progress[optimizer]
    if chunks.count(connection, status.key, optimizer, before, last) != evaluated:
        raise EvaluationConflict


def _write_progress(connection: Connection, status: RunStatus, reached: dict[int, int]) -> None:
    for optimizer, step in reached.items():
        matching = and_(progress.c.run == status.key, progress.c.optimizer == optimizer)
        connection.execute(update(progress).where(matching).values(step=step))


def _replace(
    connection: Connection, table: Table, run: int, rows: Iterable[dict[str, Any]]
) -> None:
    connection.execute(delete(table).where(table.c.run == run))
    new = [{"run": run, **row} for row in rows]
    if new:
        connection.execute(insert(table), new)


def _write_facts(connection: Connection, run: int, steps: list[EvaluatedStep]) -> None:
    rows = [
        (
            *(run, step.optimizer, step.step, step.time, step.ranks, step.failure),
            *map(step.metrics.get, CHART_METRICS),
        )
        for step in steps
    ]
    if not rows or dialects.load(connection, facts, FACTS, rows):
        return  # usually they are new; otherwise the steps are evaluated again
    values_by_name = [dict(zip(FACTS, row, strict=True)) for row in rows]
    statement, values = dialects.insert_many(connection, facts, values_by_name)
    new = {name: statement.excluded[name] for name in FACTS if name not in FACTS_KEY}
    connection.execute(statement.on_conflict_do_update(index_elements=FACTS_KEY, set_=new), values)


def _write_inactivity(
    connection: Connection, run: int, last_step: OptimizerStep, period: Inactivity
) -> None:
    optimizer, after = last_step
    row = {"run": run, "optimizer": optimizer, "after": after, **asdict(period)}
    connection.execute(dialects.insert(connection, inactivity).on_conflict_do_nothing(), row)


def _write_evaluation(connection: Connection, run: int, evaluation: EvaluationResult) -> None:
    rows = [{"position": n, **asdict(finding)} for n, finding in enumerate(evaluation.findings)]
    for row in rows:
        del row["acknowledged"], row["code"]  # stored separately: of a person, of the hooks
        # names of losses and optimizers are in these, and may hold any character
        row |= {name: without_nul(row[name]) for name in ("title", "summary", "fix")}
    _replace(connection, findings, run, rows)
    tree = [asdict(node) for node in evaluation.tree]
    row = {"verdict": evaluation.verdict, "tree": tree, "coverage": evaluation.coverage}
    _replace(connection, evaluations, run, [row])
