"""The texts of each rule on a real incident, with its numbers and the reasons of other rules.

The incidents are records of museum scripts, one for each rule, as hooks once sent them. They need
not be made anew: a service understands older hooks. After a new rule:

    cd tests && python -m museum.record fixtures/records --each-rule
    pytest unit/test_incident_texts.py --snapshot-update
"""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from gradledger_monitor.rules.docs import rules_by_id
from helpers.facts import judged
from helpers.finding_text import finding_text
from museum.evaluation import facts_of
from museum.labels import WITHOUT_EXHIBIT, collection
from museum.record import recorded

INCIDENTS = recorded(Path(__file__).parents[1] / "fixtures" / "records")
LABELS = {piece.name: piece.label for piece in collection() if piece.kind == "incident"}


@pytest.mark.parametrize("name", INCIDENTS)
def test_the_texts_of_an_incident(name: str, snapshot: SnapshotAssertion) -> None:
    evaluation = judged(facts_of(INCIDENTS[name]))
    assert LABELS[name].expected in {finding.rule for finding in evaluation.findings}
    assert [evaluation.verdict, *map(finding_text, evaluation.findings)] == snapshot


def test_a_rule_that_is_silent_states_why(snapshot: SnapshotAssertion) -> None:
    answers: dict[str, set[str]] = {rule: set() for rule in rules_by_id()}
    for records in INCIDENTS.values():
        for rule, answer in judged(facts_of(records)).coverage.items():
            answers[rule].add(answer)
    assert {rule: sorted(texts) for rule, texts in answers.items()} == snapshot


def test_every_rule_that_a_script_can_show_has_its_incident_here() -> None:
    assert {LABELS[name].expected for name in INCIDENTS} == rules_by_id().keys() - WITHOUT_EXHIBIT
