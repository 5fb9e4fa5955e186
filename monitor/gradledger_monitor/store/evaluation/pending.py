"""What the judge reads: runs with news, where they stand, and their next steps."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass
from operator import attrgetter

from sqlalchemy import Connection, or_, select

from gradledger_monitor.evaluation.run_state import OptimizerStep
from gradledger_monitor.evaluation.step_completeness import ArrivedStep
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.store.admin.overrides import RULES
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.packing import read_record, unpack_records
from gradledger_monitor.store.runs.queries import info_of
from gradledger_monitor.store.steps import chunks
from gradledger_monitor.store.tables import evals, inactivity, overrides, progress, ranks, runs

RECORDS_AT_ONCE = 2_048


@dataclass(frozen=True)
class RunStatus:
    """A run at the moment the judge takes it up."""

    key: int
    info: RunInfo
    revision: int
    generation: int
    rewind: bool
    progress: dict[int, int]  # last step judged, by optimizer; 0 is none yet
    pruned: bool  # whether records of judged steps were removed
    steps: int  # that were judged
    tokens: int
    evaluator: str | None  # the code that evaluated it last
    ended: frozenset[int]  # ranks that said they were done
    inactivity: dict[OptimizerStep, Inactivity]
    stall_at: float | None
    rules_revision: int  # how often the rules were chosen otherwise; 0 is never

    @property
    def finished(self) -> bool:
        """Whether all ranks have ended."""
        return len(self.ended) >= self.info.world_size


@dataclass(frozen=True)
class RankActivity:
    """What was last heard of a rank, and when."""

    last_seen: float
    beat: float | None
    backwards: int | None


def pending_runs(store: Store, waited_since: float, now: float) -> dict[str, int]:
    """Runs by id, with their keys: those with new records, those with a step that has waited for
    ranks since then, and those that seem to stand still."""
    news = runs.c.revision > runs.c.evaluated_revision
    due = or_(news, runs.c.waiting_since <= waited_since, runs.c.stall_at <= now)
    query = select(runs.c.id, runs.c.key).where(due).order_by(runs.c.key)
    with store.reading() as connection:
        return dict(connection.execute(query).all())


def run_status(store: Store, run: str) -> RunStatus:
    """Where the judgement of a run stands."""
    changes = select(overrides.c.revision).where(overrides.c.name == RULES).scalar_subquery()
    with store.reading() as connection:
        query = select(runs, changes.label("rules_revision")).where(runs.c.id == run)
        row = connection.execute(query).one()
        last = select(progress).where(progress.c.run == row.key)
        found = connection.execute(last).all()
        gone = select(ranks.c.rank).where(ranks.c.run == row.key, ranks.c.ended.is_not(None))
        quiet = connection.execute(select(inactivity).where(inactivity.c.run == row.key))
        return RunStatus(
            key=row.key,
            info=info_of(row),
            revision=row.revision,
            generation=row.generation,
            rewind=row.rewind,
            progress={each.optimizer: each.step for each in found},
            pruned=any(each.pruned for each in found),
            steps=row.steps,
            tokens=row.tokens,
            evaluator=row.evaluator,
            ended=frozenset(connection.scalars(gone)),
            inactivity={
                (o.optimizer, o.after): Inactivity(o.seconds, o.silent, o.backwards) for o in quiet
            },
            stall_at=row.stall_at,
            rules_revision=row.rules_revision or 0,
        )


def rank_activity(store: Store, at: RunStatus) -> dict[int, RankActivity]:
    """What was last heard of the ranks that have not ended."""
    columns = (ranks.c.rank, ranks.c.last_seen, ranks.c.heartbeat, ranks.c.backwards)
    query = select(*columns).where(ranks.c.run == at.key, ranks.c.ended.is_(None))
    with store.reading() as connection:
        return {rank: RankActivity(*said) for rank, *said in connection.execute(query)}


def next_steps(
    store: Store, at: RunStatus, optimizer: int, after: int, last: int | None = None
) -> tuple[list[ArrivedStep], bool]:
    """The steps after one, in order, as many as fit in memory; and whether there are more."""
    with store.reading() as connection:
        found, beyond = _read(connection, at.key, optimizer, after, last)
    steps: dict[int, dict[int, schema.StepRecord]] = {}
    received: dict[int, float] = {}
    ends = [step for step in (beyond, None if last is None else last + 1) if step is not None]
    end = min(ends, default=math.inf)
    for chunk in sorted(found, key=attrgetter("rank")):
        for step, record in unpack_records(chunk.records).items():
            if after < step < end:
                steps.setdefault(step, {})[chunk.rank] = read_record(record)
                received[step] = min(received.get(step, math.inf), chunk.received)
    arrived = [ArrivedStep(optimizer, step, received[step], steps[step]) for step in sorted(steps)]
    return arrived, beyond is not None


def _read(
    connection: Connection, run: int, optimizer: int, after: int, last: int | None
) -> tuple[list[chunks.Found], int | None]:
    """Chunks until they hold enough, and the step before which no other begins; None is all.

    Those that begin with one step are read together, so some step is always whole.
    """
    found = list(chunks.straddling(connection, run, optimizer, after))
    count, first = sum(chunk.record_count for chunk in found), None
    with closing(chunks.following(connection, run, optimizer, after, last)) as others:
        for chunk in others:
            first = chunk.first if first is None else first
            if count >= RECORDS_AT_ONCE and chunk.first > first:
                return found, chunk.first
            found.append(chunk)
            count += chunk.record_count
    return found, None


def eval_metrics(store: Store, at: RunStatus) -> dict[str, dict[int, float]]:
    """Evaluation metrics by name and step; of several ranks, the lowest one's."""
    query = select(evals.c.name, evals.c.step, evals.c.value).where(evals.c.run == at.key)
    found: dict[str, dict[int, float]] = {}
    with store.reading() as connection:
        for name, step, value in connection.execute(query.order_by(evals.c.rank.desc())):
            found.setdefault(name, {})[step] = math.nan if value is None else value
    return found
