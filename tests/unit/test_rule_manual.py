"""Every rule is in the catalogue, at the path of its id, with a complete manual page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gradledger_monitor.rules as package
from gradledger_monitor.cli.commands.rules import write_pages
from gradledger_monitor.evaluation.decision_tree import QUESTIONS, build_tree
from gradledger_monitor.rules import docs

HEADINGS = [
    "What it sees",
    "Why it matters",
    "What to do",
    "When it is silent",
    "Incidents",
]
FOLDER = Path(str(package.__file__)).parent
each_rule = pytest.mark.parametrize("name", list(docs.rules_by_id()))


def test_the_catalogue_holds_every_rule_in_the_folder() -> None:
    rules = {
        f"{path.parent.name}.{path.stem}"
        for path in FOLDER.glob("*/*.py")
        if re.search(r"^class \w+\((History)?Rule\)", path.read_text(), re.M)
    }
    assert rules == set(docs.rules_by_id())


@each_rule
def test_a_manual_page_has_its_headings_in_order(name: str) -> None:
    text = docs.page(docs.rules_by_id()[name])
    assert re.findall(r"^\*\*(.+)\*\*$", text, re.M) == HEADINGS


@each_rule
def test_a_fix_is_python(name: str) -> None:
    compile(docs.fix(docs.rules_by_id()[name]), name, "exec")


@each_rule
def test_what_a_rule_hides_exists(name: str) -> None:
    rules = docs.rules_by_id()
    for pattern in rules[name].inhibits:
        start = pattern.removesuffix("*")
        assert any(other.startswith(start) for other in rules), pattern


@each_rule
def test_each_rule_belongs_to_one_question_of_the_tree(name: str) -> None:
    node = build_tree({}, set(), {})
    assert len(node) == len(QUESTIONS)
    asked = [q.node for q in QUESTIONS if any(_matches(name, p) for p in q.rules)]
    asked = asked or [q.node for q in QUESTIONS if q.besides == name]
    assert len(asked) == 1, asked


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern.removesuffix("*")) if pattern.endswith("*") else name == pattern


def test_the_committed_pages_are_those_that_the_rules_write(tmp_path: Path) -> None:
    write_pages(tmp_path)
    committed = Path(__file__).parents[2] / "docs" / "rules"
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in committed.iterdir()}
