"""Retention: removes old data by age, first the records of ranks, then the rows of single steps.

Findings, verdicts, evaluation metrics and buckets (the lowest, mean and highest of neighbouring
steps) stay for ever, and so do the records and rows around findings. Steps whose records are
removed can never be evaluated again, so a snapshot of the state after them replaces the records:
the base. Only a snapshot that this version can restore may become the base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, or_, select, update

from gradledger_monitor.evaluation.evaluator_version import version
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.evaluation.snapshots import BASE
from gradledger_monitor.store.steps import chunks
from gradledger_monitor.store.tables import (
    BUCKET_STEPS,
    evals,
    facts,
    findings,
    progress,
    runs,
    snapshots,
)

DAY = 86_400.0
AROUND = 5  # steps that are kept before and after those of a finding or an evaluation
SLICE = 4_096  # steps removed in one transaction, so that ingest does not wait for long


@dataclass(frozen=True)
class RetentionPolicy:
    """For how many days data is kept; 0: for ever."""

    detail_days: float = 30.0
    steps_days: float = 365.0


@dataclass
class RemovedRows:
    """How many rows were removed."""

    records: int = 0
    steps: int = 0

    def __iadd__(self, other: RemovedRows) -> RemovedRows:
        self.records += other.records
        self.steps += other.steps
        return self


def runs_without_snapshot(store: Store, policy: RetentionPolicy, now: float) -> list[str]:
    """Runs whose records are old enough to be removed, but that have no current snapshot yet."""
    if not policy.detail_days:
        return []
    current = or_(snapshots.c.evaluator == version(), snapshots.c.level == BASE)
    saved = select(snapshots.c.run).where(snapshots.c.steps >= runs.c.steps, current)
    old = runs.c.last_seen <= now - policy.detail_days * DAY
    query = select(runs.c.id).where(old, runs.c.steps > 0, ~saved.where(_of_run()).exists())
    with store.reading() as connection:
        return list(connection.scalars(query))


def _of_run() -> ColumnElement[bool]:
    return snapshots.c.run == runs.c.key


def prune(store: Store, policy: RetentionPolicy, now: float) -> RemovedRows:
    """Remove what is older than the policy allows."""
    removed = RemovedRows()
    with store.reading() as connection:
        keys = list(connection.scalars(select(runs.c.key).order_by(runs.c.key)))
    for run in keys:
        if policy.detail_days:
            with store.writing() as connection:
                _move_base(connection, run, now - policy.detail_days * DAY)
            removed.records += _remove(store, run, partial(_remove_records, store, run))
        if policy.steps_days:
            old = facts.c.time <= now - policy.steps_days * DAY
            removed.steps += _remove(
                store, run, partial(_remove_facts, store, run, old), BUCKET_STEPS
            )
    return removed


def _move_base(connection: Connection, run: int, before: float) -> None:
    """Make the last snapshot that is old enough the base of a run, and mark its steps as pruned."""
    row = connection.execute(select(runs).where(runs.c.key == run).with_for_update()).first()
    if row is None or row.rewind:
        return
    old = snapshots.c.taken <= before
    if row.last_seen <= before and row.evaluated_revision == row.revision:
        old = snapshots.c.steps == row.steps
    of_run = snapshots.c.run == run
    query = select(snapshots).where(of_run, snapshots.c.evaluator == version(), old)
    base = connection.execute(query.order_by(snapshots.c.steps.desc()).limit(1)).first()
    if base is None:
        return
    if base.level != BASE:
        connection.execute(delete(snapshots).where(of_run, snapshots.c.level == BASE))
        connection.execute(insert(snapshots).values({**base._mapping, "level": BASE}))
    for optimizer, step in base.reached.items():
        of_optimizer = and_(progress.c.run == run, progress.c.optimizer == optimizer)
        older = progress.c.pruned < step
        connection.execute(update(progress).where(of_optimizer, older).values(pruned=step))


def _remove(
    store: Store, run: int, remove: Callable[[int, int, int], int], multiple: int = 1
) -> int:
    """Remove pruned steps except those around findings; return the number of removed rows.

    ``remove`` takes an optimizer, its first and its last step, and returns a number of rows. The
    last step is rounded down to a multiple of ``multiple``.
    """
    with store.reading() as connection:
        query = select(progress.c.optimizer, progress.c.pruned).where(progress.c.run == run)
        pruned = connection.execute(query.where(progress.c.pruned > 0)).all()
        kept_ranges = {o: list(_kept_ranges(connection, run, o)) for o, _ in pruned}
    return sum(
        remove(optimizer, begin, min(begin + SLICE - 1, end))
        for optimizer, last in pruned
        for first, end in _gaps(kept_ranges[optimizer], last - last % multiple)
        for begin in range(first, end + 1, SLICE)
    )


def _remove_records(store: Store, run: int, optimizer: int, first: int, last: int) -> int:
    with store.reading() as connection:  # without the write lock, which ingest waits for
        if not chunks.count(connection, run, optimizer, first - 1, last):
            return 0
    with store.writing() as connection:
        connection.execute(select(runs.c.key).where(runs.c.key == run).with_for_update())
        return chunks.remove(connection, run, optimizer, first, last)


def _remove_facts(
    store: Store, run: int, old: ColumnElement[bool], optimizer: int, first: int, last: int
) -> int:
    within = facts.c.step.between(first, last)
    outdated = and_(facts.c.run == run, facts.c.optimizer == optimizer, old, within)
    with store.reading() as connection:
        if connection.execute(select(facts.c.step).where(outdated).limit(1)).first() is None:
            return 0
    with store.writing() as connection:
        return connection.execute(delete(facts).where(outdated)).rowcount


def _kept_ranges(connection: Connection, run: int, optimizer: int) -> Iterator[tuple[int, int]]:
    """The first and last steps of ranges around findings and evaluations."""
    c = findings.c
    query = select(c.first_step, c.since_step, c.last_step).where(
        c.run == run, or_(c.optimizer == optimizer, c.rule.like("eval.%"))
    )
    for steps in connection.execute(query):
        yield from ((step - AROUND, step + AROUND) for step in steps if step)
    evaluated = select(evals.c.step).where(evals.c.run == run).distinct()
    yield from ((step - AROUND, step + AROUND) for step in connection.scalars(evaluated))


def _gaps(ranges: list[tuple[int, int]], last: int) -> Iterator[tuple[int, int]]:
    """The ranges of steps between these ranges, up to the last step."""
    begin = 1
    for first, end in sorted(ranges):
        if begin < min(first, last + 1):
            yield begin, min(first - 1, last)
        begin = max(begin, end + 1)
    if begin <= last:
        yield begin, last
