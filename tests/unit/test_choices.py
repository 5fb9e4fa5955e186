"""What a person switches off or sets otherwise takes effect, and is said."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gradledger import records
from gradledger_monitor import wire
from gradledger_monitor.engine import Engine
from gradledger_monitor.facts import RunInfo, merge
from gradledger_monitor.findings import Judgement
from gradledger_monitor.rules.choices import Choices
from gradledger_monitor.settings import Settings
from helpers.batches import step as unfair_step

RULE = "reduction.token_weights_unequal"


def judged(choices: Choices) -> Judgement:
    run = RunInfo("r", "n", optimizers=["SGD"])
    engine = Engine(run, choices=choices)
    for number in (1, 2):
        record = wire.decoder.decode(records.encode(unfair_step(number)))
        assert isinstance(record, wire.StepRecord)
        engine.see(merge(run, 0, number, {0: record}))
    return engine.judgement()


def test_a_rule_that_is_off_finds_nothing_and_says_that_it_is_off() -> None:
    judgement = judged(Choices(off=("reduction.token*",)))
    assert judgement.findings == []
    assert judgement.coverage[RULE] == "not_applicable: switched off in the settings"


def test_another_threshold_gives_another_severity() -> None:
    assert [f.severity for f in judged(Choices()).findings] == ["error"]
    milder = judged(Choices(thresholds={RULE: {"error": 0.9}}))
    assert [f.severity for f in milder.findings] == ["warning"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"rules_off": ["reduction.tokens"]}, "reduction.tokens"),
        ({"thresholds": {"norm.spikes": {"z": 5}}}, "norm.spikes"),
        ({"thresholds": {"norm.spike": {"zed": 5}}}, "it has z, least, steps"),
    ],
)
def test_a_choice_about_nothing_is_refused_by_name(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Settings.model_validate(wrong)
