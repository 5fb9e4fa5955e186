"""Lists of runs: searched, filtered, sorted, grouped by name, with rates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, or_, select

from gradledger_monitor.model.findings import VERDICTS
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import RunRow, run_row
from gradledger_monitor.store.runs.tags import ARCHIVED
from gradledger_monitor.store.tables import (
    acknowledgements,
    facts,
    findings,
    notes,
    progress,
    runs,
    tags,
)

WORST_FIRST = VERDICTS[::-1]
RECENT = 50  # steps over which a rate is computed

_c = runs.c
_WORST = case({verdict: at for at, verdict in enumerate(WORST_FIRST)}, value=_c.verdict)
SORTS: dict[str, ColumnElement[Any]] = {
    "seen": _c.last_seen,
    "name": func.lower(_c.name),
    "verdict": _WORST,
    "steps": _c.steps,
    "tokens": _c.tokens,
    "ranks": _c.world_size,
    "started": _c.started,
}


@dataclass(frozen=True)
class RunFilter:
    """Which runs to list, and in which order."""

    search: str = ""
    project: str = ""
    verdict: str = ""
    tag: str = ""
    name: str = ""
    sort: str = "seen"
    ascending: bool = False


def _where(run_filter: RunFilter) -> list[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = []
    if run_filter.search:
        columns = (_c.name, _c.project, _c.id)
        matches = [c.icontains(run_filter.search, autoescape=True) for c in columns]
        in_note = notes.c.text.icontains(run_filter.search, autoescape=True)
        where.append(or_(*matches, _c.key.in_(select(notes.c.run).where(in_note))))
    exact = {
        _c.project: run_filter.project,
        _c.verdict: run_filter.verdict,
        _c.name: run_filter.name,
    }
    where += [column == value for column, value in exact.items() if value]
    if run_filter.tag:
        where.append(_c.key.in_(select(tags.c.run).where(tags.c.tag == run_filter.tag)))
    if run_filter.tag != ARCHIVED:
        where.append(_c.key.not_in(select(tags.c.run).where(tags.c.tag == ARCHIVED)))
    return where


def matching_runs(store: Store, run_filter: RunFilter, limit: int, offset: int = 0) -> list[RunRow]:
    """A page of the runs that match a filter."""
    by = SORTS[run_filter.sort]
    order = (by.asc(), _c.key.asc()) if run_filter.ascending else (by.desc(), _c.key.desc())
    query = select(runs).where(*_where(run_filter)).order_by(*order).limit(limit).offset(offset)
    with store.reading() as connection:
        return [run_row(row) for row in connection.execute(query)]


def count_runs(store: Store, run_filter: RunFilter) -> int:
    """The number of runs that match a filter."""
    with store.reading() as connection:
        query = select(func.count()).select_from(runs).where(*_where(run_filter))
        return connection.scalar(query) or 0


@dataclass(frozen=True)
class Group:
    """All runs with the same name."""

    name: str
    runs: int
    verdicts: dict[str, int]
    last_seen: float


def groups(store: Store, run_filter: RunFilter, limit: int, offset: int = 0) -> list[Group]:
    """Runs by name, those with the latest data first."""
    tallies = [func.count(case((_c.verdict == verdict, 1))) for verdict in WORST_FIRST]
    last = func.max(_c.last_seen)
    query = (
        select(_c.name, func.count(), last, *tallies).where(*_where(run_filter)).group_by(_c.name)
    )
    query = query.order_by(last.desc(), _c.name).limit(limit).offset(offset)
    with store.reading() as connection:
        return [
            Group(name=name, runs=number, verdicts=_tally(verdicts), last_seen=last_seen)
            for name, number, last_seen, *verdicts in connection.execute(query)
        ]


def _tally(numbers: Sequence[int]) -> dict[str, int]:
    return {v: n for v, n in zip(WORST_FIRST, numbers, strict=True) if n}


def count_groups(store: Store, run_filter: RunFilter) -> int:
    """The number of names."""
    with store.reading() as connection:
        query = select(func.count(_c.name.distinct())).where(*_where(run_filter))
        return connection.scalar(query) or 0


def projects(store: Store) -> list[str]:
    """The names of all projects."""
    with store.reading() as connection:
        return list(connection.scalars(select(_c.project).distinct().order_by(_c.project)))


def all_tags(store: Store) -> list[str]:
    """All tags that any run has."""
    with store.reading() as connection:
        return list(connection.scalars(select(tags.c.tag).distinct().order_by(tags.c.tag)))


def tags_of(store: Store, ids: Collection[str]) -> dict[str, list[str]]:
    """The tags of runs by id."""
    query = select(_c.id, tags.c.tag).join(tags, tags.c.run == _c.key).where(_c.id.in_(ids))
    by_run: dict[str, list[str]] = {}
    with store.reading() as connection:
        for run, tag in connection.execute(query.order_by(tags.c.tag)):
            by_run.setdefault(run, []).append(tag)
    return by_run


def rates(store: Store, ids: Collection[str]) -> dict[str, float]:
    """Optimizer steps per second of each run's first optimizer, over its last steps."""
    recent = and_(
        facts.c.run == progress.c.run,
        facts.c.optimizer == 0,
        facts.c.step.between(progress.c.step - RECENT, progress.c.step),
    )
    query = (
        select(
            _c.id,
            func.max(facts.c.step) - func.min(facts.c.step),
            func.max(facts.c.time) - func.min(facts.c.time),
        )
        .join(progress, and_(progress.c.run == _c.key, progress.c.optimizer == 0))
        .join(facts, recent)
        .where(_c.id.in_(ids))
        .group_by(_c.id)
    )
    with store.reading() as connection:
        rows = connection.execute(query).all()
    return {run: steps / seconds for run, steps, seconds in rows if steps > 0 and seconds > 0}


def verdict_counts(store: Store, run_filter: RunFilter) -> dict[str, int]:
    """How many runs have each verdict, worst first, if the filter chose none."""
    where = _where(replace(run_filter, verdict=""))
    query = select(_c.verdict, func.count()).where(*where).group_by(_c.verdict)
    with store.reading() as connection:
        counts = {row[0]: row[1] for row in connection.execute(query)}
    return {verdict: counts[verdict] for verdict in WORST_FIRST if verdict in counts}


def finding_counts(store: Store, ids: Collection[str]) -> dict[str, int]:
    """How many findings each run has that no other finding explains."""
    query = (
        select(_c.id, func.count())
        .join(findings, findings.c.run == _c.key)
        .where(_c.id.in_(ids), findings.c.inhibited_by.is_(None))
        .group_by(_c.id)
    )
    with store.reading() as connection:
        return {row[0]: row[1] for row in connection.execute(query)}


@dataclass(frozen=True)
class Acknowledged:
    """How many of the open warnings and errors of a run a person has acknowledged."""

    acknowledged: int
    open: int


def acknowledged(store: Store, ids: Collection[str], now: float) -> dict[str, Acknowledged]:
    """Of each run that has an acknowledged finding which no other finding explains."""
    a, f = acknowledgements.c, findings.c
    current = and_(
        a.run == f.run,
        a.rule == f.rule,
        a.optimizer == f.optimizer,
        a.last_step >= f.since_step,
        or_(a.until.is_(None), a.until > now),
    )
    query = (
        select(_c.id, func.count(a.note), func.count())
        .join(findings, f.run == _c.key)
        .outerjoin(acknowledgements, current)
        .where(_c.id.in_(ids), f.inhibited_by.is_(None), f.severity != "info")
        .group_by(_c.id)
    )
    with store.reading() as connection:
        rows = connection.execute(query).all()
    return {run: Acknowledged(number, total) for run, number, total in rows if number}
