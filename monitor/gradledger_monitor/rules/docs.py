"""The manual of a rule is its docstring; the command line and the documentation share it."""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib.resources import files

from gradledger_monitor.rules.catalogue import HISTORY_RULES, RULES
from gradledger_monitor.rules.definition import RuleDefinition

KINDS = {
    "S": "structural: exact counts and arithmetic, reported with the first windows that show it",
    "T": "statistical: needs a history",
}


def rules_by_id() -> dict[str, type[RuleDefinition]]:
    """All rules by id, in the order of the decision tree."""
    rules: tuple[type[RuleDefinition], ...] = (*HISTORY_RULES, *RULES)
    return {rule.id(): rule for rule in rules}


def headline(rule: type[RuleDefinition]) -> str:
    """The mistake that the rule finds, in one sentence."""
    return " ".join(page(rule).split("\n\n", 1)[0].split())


def headlines() -> dict[str, str]:
    """The headlines of all rules by id, as plain text."""
    return {name: headline(rule).replace("``", "") for name, rule in rules_by_id().items()}


@cache
def page(rule: type[RuleDefinition]) -> str:
    """The docstring: a sentence, then paragraphs under headings set in bold.

    It is read from the source file, which is installed beside a compiled rule: mypyc drops the
    docstrings of classes.
    """
    package, _, module = rule.__module__.rpartition(".")
    source = files(package).joinpath(f"{module}.py").read_text(encoding="utf-8")
    classes = [part for part in ast.parse(source).body if isinstance(part, ast.ClassDef)]
    text = next(ast.get_docstring(c) for c in classes if c.name == rule.__name__)
    assert text, f"{rule.id()} has no docstring"
    return text


def fix(rule: type[RuleDefinition]) -> str:
    """The snippet on the page of the rule; its findings may show further ones, of other causes."""
    snippet: str = vars(sys.modules[rule.__module__])["FIX"]
    return snippet


def markdown(rule: type[RuleDefinition]) -> str:
    """The manual page."""
    inhibited = _listed(rule.inhibits)
    if rule.inhibits_later:
        under = f" under `{rule.inhibits_later_under}`" if rule.inhibits_later_under else ""
        later = f"if it begins first{under}, {'also ' if inhibited else ''}"
        inhibited += f"{'; ' if inhibited else ''}{later}{_listed(rule.inhibits_later)}"
    inhibited = inhibited or "nothing"
    return (
        f"# `{rule.id()}`\n\n{page(rule)}\n\n**The fix it shows**\n\n"
        f"```python\n{fix(rule)}\n```\n\n**Kind**\n\n{KINDS[rule.kind]}. Inhibits {inhibited}.\n"
        f"{_thresholds(rule)}"
    )


def _listed(patterns: tuple[str, ...]) -> str:
    return ", ".join(f"`{pattern}`" for pattern in patterns)


def _thresholds(rule: type[RuleDefinition]) -> str:
    rows = [f"| `{n}` | {p.default:g} | {p.meaning} |" for n, p in rule.parameters().items()]
    if not rows:
        return ""
    return "\n".join(["", "| threshold | default | meaning |", "|---|---|---|", *rows, ""])
