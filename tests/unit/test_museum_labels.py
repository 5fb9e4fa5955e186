"""The museum is complete: every script has a label, and every rule a script."""

from __future__ import annotations

from gradledger_monitor.rules.docs import rules_by_id
from museum.labels import HERE, WITHOUT_EXHIBIT, collection

PIECES = collection()


def test_every_script_has_a_label_and_every_label_a_script() -> None:
    scripts = {*HERE.glob("exhibits/*/*.py"), *HERE.glob("lookalikes*/*.py")}
    assert {piece.script for piece in PIECES} == scripts


def test_every_rule_has_an_exhibit_or_a_reason_for_having_none() -> None:
    shown = {piece.label.expected for piece in PIECES if piece.kind == "incident"}
    assert shown.isdisjoint(WITHOUT_EXHIBIT)
    assert shown | WITHOUT_EXHIBIT.keys() == rules_by_id().keys()
