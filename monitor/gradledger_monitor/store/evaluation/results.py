"""What the judge writes: one look at a run, in one transaction, or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Table, and_, delete, insert, select, update

from gradledger_monitor.common import clock
from gradledger_monitor.evaluation.evaluator_version import version
from gradledger_monitor.evaluation.run_state import EvaluatedStep, OptimizerStep, RunState
from gradledger_monitor.model.chart_metrics import CHART_METRICS
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.numbers import MAX_INT64
from gradledger_monitor.store import dialects
from gradledger_monitor.store.alerts import due
from gradledger_monitor.store.database import Store
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
    """The run was judged elsewhere, or a late record came, while this judgement was made."""


@dataclass(frozen=True)
class Result:
    """What one look at a run brought, to be written in one transaction."""

    before: dict[int, int]  # last step judged by optimizer, before this look
    judged: list[EvaluatedStep]
    evaluation: EvaluationResult | None  # None leaves the old one in place
    progress: dict[int, int]
    steps: int
    tokens: int
    waiting_since: float | None
    finished: bool  # nothing more is ready at the standing's revision
    unsure: set[int]  # optimizers of which steps were taken that miss something
    silence: tuple[OptimizerStep, Inactivity] | None = None
    stall_at: float | None = None
    note: str | None = None  # on how this evaluation came about; None leaves the old one


def commit(store: Store, at: RunStatus, result: Result, fold: RunState | None, stamp: str) -> None:
    """Write an evaluation with everything that it depends on, or nothing.

    Raises ``EvaluationConflict``. The state of a ``fold`` is saved in the same transaction, with
    the stamp of the code that made it.
    """
    with store.writing() as connection:
        _take_turn(connection, at, result)
        for optimizer in result.unsure:
            _check_unchanged(connection, at, result, optimizer)
        _write_progress(connection, at, result.progress)
        _write_facts(connection, at.key, result.judged)
        curves.update_buckets(connection, at.key, result.judged)
        if result.silence is not None:
            _write_silence(connection, at.key, *result.silence)
        if result.evaluation is not None:
            _write_judgement(connection, at.key, result.evaluation)
            due.request(connection, at.key, result.evaluation.findings, clock.now())
        if fold is not None:
            snapshots.write(connection, at.key, fold, stamp)


def save_snapshot(store: Store, at: RunStatus, fold: RunState, stamp: str) -> None:
    """Save the state of a fold, unless the run was judged or went back in the meantime."""
    with store.writing() as connection:
        if _is_unchanged(connection, at):
            snapshots.write(connection, at.key, fold, stamp)


def save_carried(store: Store, at: RunStatus, fold: RunState, stamp: str, note: str) -> None:
    """Save, as the base, a fold that carries an earlier evaluation; and mark the run."""
    marks = {"earlier_version": True, "evaluation_note": note, "evaluator": version()}
    with store.writing() as connection:
        if _is_unchanged(connection, at):
            snapshots.write(connection, at.key, fold, stamp, base=True)
            connection.execute(update(runs).where(runs.c.key == at.key).values(marks))


def _is_unchanged(connection: Connection, at: RunStatus) -> bool:
    same = (runs.c.key == at.key, runs.c.generation == at.generation)
    return connection.execute(select(runs.c.key).where(*same).with_for_update()).first() is not None


def _take_turn(connection: Connection, at: RunStatus, result: Result) -> None:
    told: dict[str, Any] = {
        "generation": at.generation + 1,
        "rewind": False,
        "waiting_since": result.waiting_since,
        "stall_at": result.stall_at,
        "steps": min(result.steps, MAX_INT64),
        "tokens": result.tokens,
        "evaluator": version(),
    }
    if result.note is not None:
        told["evaluation_note"] = result.note
    if result.finished:
        told["evaluated_revision"] = at.revision
    if result.evaluation is not None:
        told["verdict"] = result.evaluation.verdict
        told["primary_title"] = _primary(result.evaluation)
    same = (runs.c.key == at.key, runs.c.generation == at.generation)
    turn = connection.execute(update(runs).where(*same).values(told))
    if turn.rowcount != 1:
        raise EvaluationConflict


def _primary(evaluation: EvaluationResult) -> str | None:
    return next((_text(f.title) for f in evaluation.findings if f.inhibited_by is None), None)


def _text(value: str) -> str:
    """What Postgres accepts as text: names of losses and optimizers may hold any character."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _check_unchanged(connection: Connection, at: RunStatus, result: Result, optimizer: int) -> None:
    taken = sum(step.ranks for step in result.judged if step.optimizer == optimizer)
    before, last = result.before.get(optimizer, 0), result.progress[optimizer]
    if chunks.count(connection, at.key, optimizer, before, last) != taken:
        raise EvaluationConflict


def _write_progress(connection: Connection, at: RunStatus, reached: dict[int, int]) -> None:
    for optimizer, step in reached.items():
        here = and_(progress.c.run == at.key, progress.c.optimizer == optimizer)
        connection.execute(update(progress).where(here).values(step=step))


def _replace(
    connection: Connection, table: Table, run: int, rows: Iterable[dict[str, Any]]
) -> None:
    connection.execute(delete(table).where(table.c.run == run))
    new = [{"run": run, **row} for row in rows]
    if new:
        connection.execute(insert(table), new)


def _write_facts(connection: Connection, run: int, judged: list[EvaluatedStep]) -> None:
    rows = [
        (
            *(run, one.optimizer, one.step, one.time, one.ranks, one.failure),
            *map(one.figures.get, CHART_METRICS),
        )
        for one in judged
    ]
    if not rows or dialects.load(connection, facts, FACTS, rows):
        return  # most often they are new; else they are judged again
    named = [dict(zip(FACTS, row, strict=True)) for row in rows]
    statement, values = dialects.insert_many(connection, facts, named)
    told = {name: statement.excluded[name] for name in FACTS if name not in FACTS_KEY}
    connection.execute(statement.on_conflict_do_update(index_elements=FACTS_KEY, set_=told), values)


def _write_silence(
    connection: Connection, run: int, place: OptimizerStep, silence: Inactivity
) -> None:
    optimizer, after = place
    row = {"run": run, "optimizer": optimizer, "after": after, **asdict(silence)}
    connection.execute(dialects.insert(connection, inactivity).on_conflict_do_nothing(), row)


def _write_judgement(connection: Connection, run: int, evaluation: EvaluationResult) -> None:
    found = [{"position": at, **asdict(one)} for at, one in enumerate(evaluation.findings)]
    for row in found:
        del row["acknowledged"]  # a person's word, kept apart
        row |= {name: _text(row[name]) for name in ("title", "summary", "fix")}
    _replace(connection, findings, run, found)
    tree = [asdict(node) for node in evaluation.tree]
    row = {"verdict": evaluation.verdict, "tree": tree, "coverage": evaluation.coverage}
    _replace(connection, evaluations, run, [row])
