"""The pages of the rules: all of them, and the manual of one, which links in messages lead to."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.pages.layout import RuleId, not_found, page
from gradledger_monitor.common import clock
from gradledger_monitor.rules import docs
from gradledger_monitor.rules.definition import RuleDefinition
from gradledger_monitor.store.runs import findings_inbox

router = APIRouter(include_in_schema=False)

_ISSUE = re.compile(r"([\w.-]+/[\w.-]+#\d+)")

MOST_RUNS = 100  # that a rule's page lists


@router.get("/rules")
def list_rules(store: StoreDep) -> HTMLResponse:
    """All rules by family, with the number of runs that show each."""
    runs = {rule.rule: rule.runs for rule in findings_inbox.inbox(store, clock.now())}
    rules = [
        {
            "id": rule_id,
            "family": rule_id.partition(".")[0],
            "headline": _plain(docs.headline(rule)),
            "runs": runs.get(rule_id, 0),
        }
        for rule_id, rule in docs.rules_by_id().items()
    ]
    return page("rules.html", rules=rules)


@router.get("/rules/{rule}")
def show_rule(store: StoreDep, rule: RuleId) -> HTMLResponse:
    """What the rule finds, why it matters, its fix and thresholds, and the runs that show it."""
    definition = docs.rules_by_id().get(rule)
    if definition is None:
        hint = f"There is no rule {rule}."
        return not_found("Rule not found", hint, "/rules", "All rules")
    headline, *parts = docs.page(definition).split("\n\n")
    return page(
        "rule.html",
        rule=rule,
        headline=_plain(headline),
        parts=[(part.startswith("**"), _with_links(_plain(part))) for part in parts],
        kind=docs.KINDS[definition.kind],
        fix=docs.fix(definition),
        thresholds=definition.parameters(),
        symptoms=_inhibited(definition),
        runs=findings_inbox.runs_with(store, rule, clock.now(), MOST_RUNS),
    )


def _plain(text: str) -> str:
    """A part of a manual without the marks of headings and code."""
    return text.strip("*").replace("``", "")


def _with_links(text: str) -> list[tuple[str, str | None]]:
    """The pieces of a text, each with its address if it names an issue: ``owner/name#123``."""
    pieces = _ISSUE.split(text)
    return [(piece, _address(piece) if number % 2 else None) for number, piece in enumerate(pieces)]


def _address(issue: str) -> str:
    repository, _, number = issue.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


def _inhibited(definition: type[RuleDefinition]) -> list[str]:
    """The rules whose findings this one explains."""
    return [
        rule_id
        for rule_id in docs.rules_by_id()
        if any(fnmatchcase(rule_id, pattern) for pattern in definition.inhibits)
    ]
