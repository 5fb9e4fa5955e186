"""The pages of the rules: all of them, and the manual of one, which links in messages lead to."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import NamedTuple

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from gradledger_monitor.api.app_state import StateDep, StoreDep
from gradledger_monitor.api.pages.layout import RuleId, not_found, page
from gradledger_monitor.common import clock
from gradledger_monitor.rules import docs
from gradledger_monitor.rules.definition import RuleDefinition
from gradledger_monitor.store.runs import findings_inbox

router = APIRouter(include_in_schema=False)

_ISSUE = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")
_MARKED = re.compile(r"(``[^`]+``|`[^`]+`|[\w.-]+/[\w.-]+#\d+)")


class Piece(NamedTuple):
    """A piece of a text: plain, code, or the name of an issue with its address."""

    text: str
    url: str | None = None
    is_code: bool = False


MOST_RUNS = 100  # that a rule's page lists
_SILENT = "**When it is silent**"


@router.get("/rules")
def list_rules(store: StoreDep) -> HTMLResponse:
    """All rules by family, with the number of runs that show each."""
    runs = findings_inbox.runs_by_rule(store)
    rules = [
        {
            "id": rule_id,
            "family": rule_id.partition(".")[0],
            "headline": headline,
            "runs": runs.get(rule_id, 0),
        }
        for rule_id, headline in docs.headlines().items()
    ]
    return page("rules.html", rules=rules)


@router.get("/rules/{rule}")
def show_rule(state: StateDep, rule: RuleId) -> HTMLResponse:
    """What the rule finds, why it matters, its fix and thresholds, and the runs that show it."""
    definition = docs.rules_by_id().get(rule)
    if definition is None:
        hint = f"There is no rule {rule}."
        return not_found("Rule not found", hint, "/rules", "All rules")
    parts = docs.page(definition).split("\n\n")[1:]
    silent = parts.index(_SILENT)  # the fix stands before it, after what to do
    return page(
        "rule.html",
        rule=rule,
        headline=docs.headlines()[rule],
        parts_before_fix=[_part(part) for part in parts[:silent]],
        parts_after_fix=[_part(part) for part in parts[silent:]],
        kind=docs.KINDS[definition.kind],
        fix=docs.fix(definition),
        thresholds=definition.parameters(),
        values=state.overrides.rule_overrides().thresholds.get(rule, {}),
        symptoms=_inhibited(definition),
        runs=findings_inbox.runs_with(state.store, rule, clock.now(), MOST_RUNS),
        most_runs=MOST_RUNS,
    )


def _part(text: str) -> tuple[str, list[list[Piece]]]:
    """A heading, paragraph or list of a manual: the element of its page, and its texts."""
    element = "h2" if text.startswith("**") else "ul" if text.startswith("- ") else "p"
    texts = text.removeprefix("- ").split("\n- ") if element == "ul" else [text]
    return element, [_pieces(" ".join(each.split())) for each in texts]


def _pieces(text: str) -> list[Piece]:
    """The pieces of a paragraph or heading: text, ``code``, rules and issues."""
    return [_piece(piece) for piece in _MARKED.split(text.strip("*")) if piece]


def _piece(text: str) -> Piece:
    if issue := _ISSUE.fullmatch(text):
        repository, number = issue.groups()
        return Piece(text, url=f"https://github.com/{repository}/issues/{number}")
    code = text.strip("`")
    url = f"/rules/{code}" if code in docs.rules_by_id() else ""
    return Piece(code, url=url, is_code=code != text)


def _inhibited(definition: type[RuleDefinition]) -> list[str]:
    """The rules whose findings this one explains."""
    return [
        rule_id
        for rule_id in docs.rules_by_id()
        if any(fnmatchcase(rule_id, pattern) for pattern in definition.inhibits)
    ]
