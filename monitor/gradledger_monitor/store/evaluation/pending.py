"""What the evaluator reads: pending runs, their status, and their next steps."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Row, or_, select

from gradledger_monitor.evaluation.evaluated_step import OptimizerStep
from gradledger_monitor.evaluation.step_completeness import ArrivedStep
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.store.admin.overrides import RULES
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.packing import read_record, unpack_records
from gradledger_monitor.store.runs.queries import UnknownRun, info_of
from gradledger_monitor.store.steps import chunks
from gradledger_monitor.store.tables import evals, inactivity, overrides, progress, ranks, runs

RECORDS_AT_ONCE = 2_048


@dataclass(frozen=True)
class RunStatus:
    """A run when an evaluation pass of it begins."""

    key: int
    info: RunInfo
    revision: int
    generation: int
    rewind: bool
    progress: dict[int, int]  # last evaluated step by optimizer; 0: none yet
    pruned: bool  # whether records of evaluated steps were removed
    steps: int  # that were evaluated
    tokens: int
    evaluator: str | None  # the code that evaluated it last
    ended: frozenset[int]  # ranks that ended
    absent: frozenset[int]  # ranks that never sent anything
    inactivity: dict[OptimizerStep, Inactivity]
    stall_at: float | None
    rules_revision: int  # how often overrides of rules were changed; 0: never

    @property
    def finished(self) -> bool:
        """Whether all ranks that sent anything have ended."""
        return bool(self.ended) and len(self.ended | self.absent) >= self.info.world_size


@dataclass(frozen=True)
class RankActivity:
    """The last heartbeat of a rank, in Unix seconds, and its backwards since its last step."""

    heartbeat: float | None
    backwards: int | None


def pending_runs(store: Store, waited_since: float, now: float) -> dict[str, int]:
    """The keys of pending runs by id: runs with new records, with a step that has waited for ranks
    since ``waited_since``, or without a step for so long that they may have stalled."""
    has_records = runs.c.revision > runs.c.evaluated_revision
    due = or_(has_records, runs.c.waiting_since <= waited_since, runs.c.stall_at <= now)
    query = select(runs.c.id, runs.c.key).where(due).order_by(runs.c.key)
    with store.reading() as connection:
        return dict(connection.execute(query).all())


def run_status(store: Store, run: str) -> RunStatus:
    """The status of a run. Raises ``UnknownRun``."""
    changes = select(overrides.c.revision).where(overrides.c.name == RULES).scalar_subquery()
    with store.reading() as connection:
        query = select(runs, changes.label("rules_revision")).where(runs.c.id == run)
        row = connection.execute(query).first()
        if row is None:
            raise UnknownRun(run)
        optimizers = connection.execute(select(progress).where(progress.c.run == row.key)).all()
        of_run = select(ranks.c.rank, ranks.c.ended).where(ranks.c.run == row.key)
        ended: dict[int, float | None] = dict(connection.execute(of_run).all())
        periods = connection.execute(select(inactivity).where(inactivity.c.run == row.key))
        return RunStatus(
            key=row.key,
            info=info_of(row),
            revision=row.revision,
            generation=row.generation,
            rewind=row.rewind,
            progress={optimizer.optimizer: optimizer.step for optimizer in optimizers},
            pruned=any(optimizer.pruned for optimizer in optimizers),
            steps=row.steps,
            tokens=row.tokens,
            evaluator=row.evaluator,
            ended=frozenset(rank for rank, time in ended.items() if time is not None),
            absent=frozenset(range(row.world_size)).difference(ended),
            inactivity={(p.optimizer, p.after): _inactivity(p) for p in periods},
            stall_at=row.stall_at,
            rules_revision=row.rules_revision or 0,
        )


def _inactivity(row: Row[Any]) -> Inactivity:
    return Inactivity(seconds=row.seconds, silent=row.silent, backwards=row.backwards)


def rank_activity(store: Store, status: RunStatus) -> dict[int, RankActivity]:
    """The activity of the ranks that have not ended."""
    columns = (ranks.c.rank, ranks.c.heartbeat, ranks.c.backwards)
    query = select(*columns).where(ranks.c.run == status.key, ranks.c.ended.is_(None))
    with store.reading() as connection:
        return {
            row.rank: RankActivity(heartbeat=row.heartbeat, backwards=row.backwards)
            for row in connection.execute(query)
        }


def next_steps(
    store: Store, status: RunStatus, optimizer: int, after: int, last: int | None = None
) -> tuple[list[ArrivedStep], bool]:
    """The steps after ``after``, in order, as many as fit in memory; and whether there are more."""
    with store.reading() as connection:
        read, unread = _read(connection, status.key, optimizer, after, last)
    steps: dict[int, dict[int, schema.StepRecord]] = {}
    received: dict[int, float] = {}
    ends = [step for step in (unread, None if last is None else last + 1) if step is not None]
    end = min(ends, default=math.inf)
    for chunk in sorted(read, key=attrgetter("rank")):
        for step, record in unpack_records(chunk.records).items():
            if after < step < end:
                steps.setdefault(step, {})[chunk.rank] = read_record(record)
                received[step] = min(received.get(step, math.inf), chunk.received)
    arrived = [ArrivedStep(optimizer, step, received[step], steps[step]) for step in sorted(steps)]
    return arrived, unread is not None


def _read(
    connection: Connection, run: int, optimizer: int, after: int, last: int | None
) -> tuple[list[chunks.Chunk], int | None]:
    """Chunks that hold at least ``RECORDS_AT_ONCE`` records, and the first step of those not read.

    None: all were read. Chunks that begin with the same step are read together, so that at least
    one step has the records of all ranks.
    """
    read = list(chunks.straddling(connection, run, optimizer, after))
    count, first = sum(chunk.record_count for chunk in read), None
    with closing(chunks.following(connection, run, optimizer, after, last)) as following:
        for chunk in following:
            first = chunk.first if first is None else first
            if count >= RECORDS_AT_ONCE and chunk.first > first:
                return read, chunk.first
            read.append(chunk)
            count += chunk.record_count
    return read, None


def eval_metrics(store: Store, status: RunStatus) -> dict[str, dict[int, float]]:
    """Evaluation metrics by name and step; of several ranks, those of the lowest."""
    query = select(evals.c.name, evals.c.step, evals.c.value).where(evals.c.run == status.key)
    metrics: dict[str, dict[int, float]] = {}
    with store.reading() as connection:
        for name, step, value in connection.execute(query.order_by(evals.c.rank.desc())):
            metrics.setdefault(name, {})[step] = math.nan if value is None else value
    return metrics
