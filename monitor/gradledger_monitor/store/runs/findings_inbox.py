"""Findings of all runs, by rule: what is open, where, and since when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, distinct, func, or_, select

from gradledger_monitor.common.clock import EARLIEST_KNOWN
from gradledger_monitor.model.findings import SEVERITIES, Finding
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.tables import acknowledgements, findings, runs

RUNS_SHOWN = 5  # of each rule in the inbox
_OF_COMMIT = [runs.c[name] for name in ("key", "id", "name", "environment", "project", "started")]


@dataclass(frozen=True)
class FindingInRun:
    """The finding of a rule in one run."""

    run: str
    name: str
    project: str
    started: float
    last_seen: float
    optimizer: int
    title: str
    severity: str
    lifecycle: str
    first_step: int
    last_step: int
    acknowledged: bool
    inhibited_by: str | None  # the rule whose finding explains it


@dataclass(frozen=True)
class RunOfCommit:
    """A run, and the git commit of its script; "" if it is not known."""

    run: str
    name: str
    commit: str


@dataclass(frozen=True)
class Regression:
    """The first run in which a rule has a finding.

    ``before`` is the run before it in its project, if that is of another commit and the rule has
    no finding there.
    """

    first: RunOfCommit
    before: RunOfCommit | None


@dataclass(frozen=True)
class RuleFindings:
    """The findings of one rule in all runs, the latest run first."""

    rule: str
    runs: int
    acknowledged: int
    severity: str  # the worst
    title: str  # of the latest run
    titles_differ: bool
    first_seen: float  # the start of the first run with it; 0: not known
    last_seen: float
    latest: Sequence[FindingInRun]

    @property
    def open(self) -> int:
        """The runs in which nobody acknowledged it."""
        return self.runs - self.acknowledged


def inbox(store: Store, now: float, search: str = "") -> list[RuleFindings]:
    """The findings that no other finding explains, by rule: the most severe first."""
    by_rule: dict[str, list[FindingInRun]] = {}
    for row in _rows(store, now, search):
        by_rule.setdefault(row.rule, []).append(_finding(row))
    rules = [_rule_findings(rule, in_runs) for rule, in_runs in by_rule.items()]
    return sorted(
        rules, key=lambda r: (r.open == 0, -SEVERITIES.index(r.severity), -r.open, -r.last_seen)
    )


def latest_findings(store: Store, rules: Sequence[RuleFindings], now: float) -> dict[str, Finding]:
    """The finding of each rule in its latest run, with its text and the script's code."""
    latest = {(r.latest[0].run, r.rule, r.latest[0].optimizer) for r in rules}
    keys = select(runs.c.id, runs.c.key).where(runs.c.id.in_({run for run, _, _ in latest}))
    with store.reading() as connection:
        return {
            finding.rule: finding
            for run, key in connection.execute(keys).all()
            for finding in queries.current_findings(connection, key, now)
            if (run, finding.rule, finding.optimizer) in latest
        }


def runs_with(store: Store, rule: str, now: float, most: int) -> list[FindingInRun]:
    """The latest runs in which a rule has a finding, also one that another finding explains."""
    return [_finding(row) for row in _rows(store, now, rule=rule)][:most]


def regressions(store: Store, rules: Sequence[str]) -> dict[str, Regression]:
    """Since which run each of these rules has findings that no other finding explains."""
    f, r = findings.c, runs.c
    of_rules = (f.rule.in_(rules), f.inhibited_by.is_(None), r.started >= EARLIEST_KNOWN)
    starts = (
        select(f.rule, func.min(r.started).label("started"))
        .join(runs, r.key == f.run)
        .where(*of_rules)
        .group_by(f.rule)
        .subquery()
    )
    query = (
        select(f.rule, *_OF_COMMIT)
        .join(runs, r.key == f.run)
        .join(starts, and_(starts.c.rule == f.rule, starts.c.started == r.started))
        .where(*of_rules)
        .order_by(r.id)
    )
    with store.reading() as connection:
        return {
            row.rule: Regression(_of_commit(row), _before(connection, row))
            for row in connection.execute(query).all()
        }


def _before(connection: Connection, first: Any) -> RunOfCommit | None:
    f, r = findings.c, runs.c
    in_project = (r.project == first.project, r.started >= EARLIEST_KNOWN)
    query = select(*_OF_COMMIT).where(*in_project, r.started < first.started)
    row = connection.execute(query.order_by(r.started.desc()).limit(1)).first()
    if row is None:
        return None
    before = _of_commit(row)
    same_rule = select(f.rule).where(f.run == row.key, f.rule == first.rule).limit(1)
    is_other = before.commit not in ("", _of_commit(first).commit)
    return before if is_other and not connection.execute(same_rule).first() else None


def _of_commit(row: Any) -> RunOfCommit:
    return RunOfCommit(row.id, row.name, str(row.environment.get("commit", "")))


def runs_by_rule(store: Store) -> dict[str, int]:
    """The number of runs in which each rule has a finding, also one that another explains."""
    f = findings.c
    query = select(f.rule, func.count(distinct(f.run))).group_by(f.rule)
    with store.reading() as connection:
        return dict(connection.execute(query).tuples().all())


def _rows(store: Store, now: float, search: str = "", rule: str = "") -> Sequence[Row[Any]]:
    f, a, r = findings.c, acknowledgements.c, runs.c
    current = and_(
        a.run == f.run,
        a.rule == f.rule,
        a.optimizer == f.optimizer,
        a.last_step >= f.since_step,
        or_(a.until.is_(None), a.until > now),
    )
    of_run = (r.id, r.name, r.project, r.started, r.last_seen)
    columns = (*of_run, f.rule, f.title, f.severity, f.inhibited_by)
    query = (
        select(
            *columns,
            f.lifecycle,
            func.min(f.first_step).label("first_step"),
            func.max(f.last_step).label("last_step"),
            func.min(f.optimizer).label("optimizer"),
            (func.count(a.note) == func.count()).label("acknowledged"),
        )
        .join(runs, r.key == f.run)
        .outerjoin(acknowledgements, current)
        .group_by(*columns, f.lifecycle)
        .order_by(r.last_seen.desc(), r.id)
    )
    query = query.where(f.rule == rule) if rule else query.where(f.inhibited_by.is_(None))
    if search:
        columns_searched = (f.rule, f.title, r.name, r.project)
        query = query.where(or_(*(c.icontains(search, autoescape=True) for c in columns_searched)))
    with store.reading() as connection:
        rows = connection.execute(query).all()
    return list({(row.id, row.rule): row for row in reversed(rows)}.values())[::-1]


def _finding(row: Row[Any]) -> FindingInRun:
    names = FindingInRun.__dataclass_fields__.keys() - {"run"}
    values = {name: row._mapping[name] for name in names}
    return FindingInRun(run=row.id, **{**values, "acknowledged": bool(row.acknowledged)})


def _rule_findings(rule: str, in_runs: list[FindingInRun]) -> RuleFindings:
    starts = [f.started for f in in_runs if f.started >= EARLIEST_KNOWN]
    return RuleFindings(
        rule=rule,
        runs=len(in_runs),
        acknowledged=sum(finding.acknowledged for finding in in_runs),
        severity=max((finding.severity for finding in in_runs), key=SEVERITIES.index),
        title=in_runs[0].title,
        titles_differ=len({finding.title for finding in in_runs}) > 1,
        first_seen=min(starts, default=0.0),
        last_seen=max(finding.last_seen for finding in in_runs),
        latest=in_runs[:RUNS_SHOWN],
    )
