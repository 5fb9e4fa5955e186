"""What the judge reads and writes: runs with news, their next steps, and what came of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, Table, and_, delete, func, insert, or_, select, update

from gradledger_monitor.facts import RunInfo
from gradledger_monitor.findings import Judgement
from gradledger_monitor.store import dialects
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.packing import unpack_record
from gradledger_monitor.store.reading import info_of
from gradledger_monitor.store.tables import (
    FIGURES,
    evals,
    facts,
    findings,
    judgements,
    progress,
    ranks,
    runs,
    steps,
)
from gradledger_monitor.waiting import Arrived

ROWS_AT_ONCE = 2_048


class Outrun(Exception):
    """The run was judged elsewhere, or a late record came, while this judgement was made."""


@dataclass(frozen=True)
class Standing:
    """A run at the moment the judge takes it up."""

    key: int
    info: RunInfo
    revision: int
    generation: int
    rewind: bool
    progress: dict[int, int]  # last step judged, by optimizer; 0 is none yet
    ended: frozenset[int]  # ranks that said they were done


@dataclass(frozen=True)
class Judged:
    """One step as it is shown: the figures, and of how many ranks."""

    optimizer: int
    step: int
    time: float
    ranks: int
    figures: dict[str, float | None]


@dataclass(frozen=True)
class Result:
    """What one look at a run brought, to be written in one transaction."""

    judged: list[Judged]
    judgement: Judgement | None  # None leaves the old one in place
    progress: dict[int, int]
    steps: int
    tokens: int
    waiting_since: float | None
    finished: bool  # nothing more is ready at the standing's revision
    unsure: set[int]  # optimizers of which steps were taken that miss something


def pending(store: Store, waited_since: float) -> list[str]:
    """Runs with new records, and runs with a step that has waited for ranks since then."""
    news = runs.c.revision > runs.c.judged_revision
    query = select(runs.c.id).where(or_(news, runs.c.waiting_since <= waited_since))
    with store.reading() as connection:
        return list(connection.scalars(query.order_by(runs.c.key)))


def standing(store: Store, run: str) -> Standing:
    """Where the judgement of a run stands."""
    with store.reading() as connection:
        row = connection.execute(select(runs).where(runs.c.id == run)).one()
        last = select(progress.c.optimizer, progress.c.step).where(progress.c.run == row.key)
        gone = select(ranks.c.rank).where(ranks.c.run == row.key, ranks.c.ended.is_not(None))
        return Standing(
            key=row.key,
            info=info_of(row),
            revision=row.revision,
            generation=row.generation,
            rewind=row.rewind,
            progress=dict(connection.execute(last).all()),
            ended=frozenset(connection.scalars(gone)),
        )


def next_steps(
    store: Store, at: Standing, optimizer: int, after: int, last: int | None = None
) -> tuple[list[Arrived], bool]:
    """The steps after one, in order, as many as fit in memory; and whether there are more."""
    limit = max(ROWS_AT_ONCE, 2 * at.info.world_size)
    here = [steps.c.run == at.key, steps.c.optimizer == optimizer, steps.c.step > after]
    here += [steps.c.step <= last] if last is not None else []
    query = select(steps).where(*here).order_by(steps.c.step, steps.c.rank).limit(limit)
    with store.reading() as connection:
        rows = connection.execute(query).all()
    arrived = [_arrived(group) for _, group in groupby(rows, lambda row: row.step)]
    more = len(rows) == limit
    return (arrived[:-1] if more else arrived), more  # the last may have been cut in two


def evaluations(store: Store, at: Standing) -> dict[str, dict[int, float]]:
    """Evaluation metrics by name and step; of several ranks, the lowest one's."""
    query = select(evals.c.name, evals.c.step, evals.c.value).where(evals.c.run == at.key)
    found: dict[str, dict[int, float]] = {}
    with store.reading() as connection:
        for name, step, value in connection.execute(query.order_by(evals.c.rank.desc())):
            found.setdefault(name, {})[step] = math.nan if value is None else value
    return found


def _arrived(rows: Iterator[Row[Any]]) -> Arrived:
    found = list(rows)
    records = {row.rank: unpack_record(row.record) for row in found}
    received = min(row.received for row in found)
    return Arrived(found[0].optimizer, found[0].step, received, records)


# ---------------------------------------------------------------- writing


def commit(store: Store, at: Standing, result: Result) -> None:
    """Write a judgement with everything that it rests on, or raise ``Outrun`` and write nothing."""
    with store.writing() as connection:
        _take_turn(connection, at, result)
        for optimizer in result.unsure:
            _check_unchanged(connection, at, result, optimizer)
        _write_progress(connection, at, result.progress)
        _write_facts(connection, at.key, result.judged)
        if result.judgement is not None:
            _write_judgement(connection, at.key, result.judgement)


def _take_turn(connection: Connection, at: Standing, result: Result) -> None:
    told: dict[str, Any] = {
        "generation": at.generation + 1,
        "rewind": False,
        "waiting_since": result.waiting_since,
        "steps": result.steps,
        "tokens": result.tokens,
    }
    if result.finished:
        told["judged_revision"] = at.revision
    if result.judgement is not None:
        told["verdict"] = result.judgement.verdict
        told["primary_title"] = _primary(result.judgement)
    same = and_(runs.c.generation == at.generation, runs.c.rewind == at.rewind)
    turn = connection.execute(update(runs).where(runs.c.key == at.key, same).values(told))
    if turn.rowcount != 1:
        raise Outrun


def _primary(judgement: Judgement) -> str | None:
    return next((f.title for f in judgement.findings if f.inhibited_by is None), None)


def _check_unchanged(connection: Connection, at: Standing, result: Result, optimizer: int) -> None:
    taken = sum(step.ranks for step in result.judged if step.optimizer == optimizer)
    # after a rewind all steps are taken again, from the first
    before = 0 if at.rewind else at.progress.get(optimizer, 0)
    within = steps.c.step.between(before + 1, result.progress[optimizer])
    here = and_(steps.c.run == at.key, steps.c.optimizer == optimizer, within)
    if connection.scalar(select(func.count()).select_from(steps).where(here)) != taken:
        raise Outrun


def _write_progress(connection: Connection, at: Standing, reached: dict[int, int]) -> None:
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


def _write_facts(connection: Connection, run: int, judged: list[Judged]) -> None:
    rows = [
        {
            "run": run,
            "optimizer": one.optimizer,
            "step": one.step,
            "time": one.time,
            "ranks": one.ranks,
            **{name: one.figures.get(name) for name in FIGURES},
        }
        for one in judged
    ]
    if rows:
        statement = dialects.insert(connection, facts)
        told = {name: statement.excluded[name] for name in ("time", "ranks", *FIGURES)}
        keys = ["run", "optimizer", "step"]
        connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=told), rows)


def _write_judgement(connection: Connection, run: int, judgement: Judgement) -> None:
    found = [{"position": at, **asdict(one)} for at, one in enumerate(judgement.findings)]
    for row in found:
        del row["acknowledged"]  # a person's word, kept apart
    _replace(connection, findings, run, found)
    tree = [asdict(node) for node in judgement.tree]
    row = {"verdict": judgement.verdict, "tree": tree, "coverage": judgement.coverage}
    _replace(connection, judgements, run, [row])
