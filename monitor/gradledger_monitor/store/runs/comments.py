"""Comments on the findings of a rule in all runs, and the person to whom they are assigned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import insert, select

from gradledger_monitor.model.findings import Comment
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import comments


@dataclass(frozen=True)
class Discussion:
    """The comments on the findings of one rule, the first one first."""

    comments: Sequence[Comment] = ()

    @property
    def assignee(self) -> str:
        """Who looks after the findings; "" if nobody does."""
        assigned = (c.assignee for c in reversed(self.comments) if c.assignee is not None)
        return next(assigned, "")


def add_comment(store: Store, rule: str, comment: Comment) -> None:
    """Store a comment."""
    with store.writing() as connection:
        connection.execute(insert(comments).values(rule=rule, **asdict(comment)))


def discussion(store: Store, rule: str) -> Discussion:
    """The comments on one rule."""
    return discussions(store, [rule]).get(rule, Discussion())


def discussions(store: Store, rules: Sequence[str]) -> dict[str, Discussion]:
    """The comments on each of these rules that has any."""
    c = comments.c
    query = select(c.rule, c.text, c.by, c.at, c.assignee).where(c.rule.in_(rules)).order_by(c.key)
    by_rule: dict[str, list[Comment]] = {}
    with store.reading() as connection:
        for rule, *values in connection.execute(query):
            by_rule.setdefault(rule, []).append(Comment(*values))
    return {rule: Discussion(of_rule) for rule, of_rule in by_rule.items()}
