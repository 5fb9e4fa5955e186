"""Overrides of rules take effect, and results state them."""

from __future__ import annotations

import io

import pytest
from pydantic import ValidationError

from gradledger.delivery.encoding import encode
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.step_facts import RunInfo, merge
from gradledger_monitor.reports.terminal import console, report
from gradledger_monitor.rules.definition import RuleDefinition
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.overrides import RuleOverrides, is_overridden
from helpers.batches import step as unfair_step

RULE = "reduction.token_weights_unequal"


def evaluate(overrides: RuleOverrides) -> EvaluationResult:
    run = RunInfo("r", "n", optimizers=["SGD"])
    state = RunState(run, overrides)
    for number in (1, 2):
        record = schema.decoder.decode(encode(unfair_step(number)))
        assert isinstance(record, schema.StepRecord)
        state.add_facts(merge(run, 0, number, {0: record}))
    return state.result()


def test_a_rule_that_is_off_finds_nothing_and_is_listed_as_off() -> None:
    evaluation = evaluate(RuleOverrides(off=("reduction.token*",)))
    assert evaluation.findings == []
    assert evaluation.coverage[RULE] == "not_applicable: switched off in the settings"


def test_another_threshold_gives_another_severity() -> None:
    assert [f.severity for f in evaluate(RuleOverrides()).findings] == ["error"]
    milder = evaluate(RuleOverrides(thresholds={RULE: {"error": 0.9}}))
    assert [f.severity for f in milder.findings] == ["warning"]
    assert milder.coverage[RULE] == "finding: evaluated with error = 0.9 (default 0.05)"


def test_a_threshold_equal_to_its_default_is_not_listed() -> None:
    same = evaluate(RuleOverrides(thresholds={RULE: {"error": 0.05}}))
    assert same.coverage[RULE] == "finding"


def test_several_thresholds_are_listed() -> None:
    coverage = evaluate(RuleOverrides(thresholds={RULE: {"error": 0.9, "warning": 0.2}})).coverage[
        RULE
    ]
    assert coverage.endswith("with error = 0.9 (default 0.05), warning = 0.2 (default 0.01)")


def test_coverage_states_whether_a_rule_is_overridden() -> None:
    assert is_overridden(evaluate(RuleOverrides(off=(RULE,))).coverage[RULE])
    assert is_overridden(evaluate(RuleOverrides(thresholds={RULE: {"error": 0.9}})).coverage[RULE])
    assert not is_overridden(evaluate(RuleOverrides()).coverage[RULE])
    assert not is_overridden(evaluate(RuleOverrides()).coverage["ddp.replica_drift"])


def test_all_invalid_overrides_are_listed_and_no_valid_one() -> None:
    right: dict[str, dict[str, float]] = {RULE: {"error": 0.9}, "norm.spike": {"z": 5.0}}
    assert list(RuleOverrides(off=("clip.*",), thresholds=right).problems(rules_by_id())) == []
    wrong = RuleOverrides(thresholds={"a.b": {"c": 1.0}, **right, "d.e": {"f": 1.0}})
    assert [path for path, _ in wrong.problems(rules_by_id())] == [
        ("thresholds", "a.b"),
        ("thresholds", "d.e"),
    ]


def test_the_terminal_lists_overrides() -> None:
    output = io.StringIO()
    overrides = RuleOverrides(off=("clip.always*",), thresholds={RULE: {"error": 0.9}})
    console(output).print(report("r", 2, 1, evaluate(overrides)))
    assert "1 rule switched off in the settings: clip.always_engaged" in output.getvalue()
    assert f"{RULE}: evaluated with error = 0.9 (default 0.05)" in output.getvalue()


@pytest.mark.parametrize("rule", rules_by_id().values(), ids=lambda rule: rule.id())
def test_every_rule_can_be_made_with_the_least_and_the_most(rule: type[RuleDefinition]) -> None:
    for name, parameter in rule.parameters().items():
        least = 1 if isinstance(parameter.default, int) else 0
        for value in (least, min(parameter.most, 1e12)):
            assert getattr(rule({name: value}), name) == value


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"rules_off": ["reduction.tokens"]}, "rules_off.reduction.tokens: no rule matches it"),
        (
            {"thresholds": {"norm.spikes": {"z": 5}}},
            "thresholds.norm.spikes: there is no rule 'norm.spikes'; see `gradledger",
        ),
        ({"thresholds": {"norm.nonfinite": {"z": 5}}}, "no such threshold; it has none"),
        ({"thresholds": {"norm.spike": {"zed": 5}}}, "it has z, least, steps"),
        (
            {"thresholds": {"norm.spike": {"z": -1}}},
            "thresholds.norm.spike.z: -1 is not a number from 0 upwards; the default",
        ),
        ({"thresholds": {"norm.spike": {"z": float("nan")}}}, "nan is not a number"),
        ({"thresholds": {"norm.spike": {"steps": 2.5}}}, "a whole number from 1 to 1,000,000"),
        ({"thresholds": {"norm.spike": {"steps": 0}}}, "the default is 10"),
        ({"thresholds": {"norm.spike": {"steps": 1e300}}}, "a whole number from 1"),
        ({"thresholds": {RULE: {"error": 1.5}}}, "a number from 0 to 1; the default is 0.05"),
    ],
)
def test_a_choice_about_nothing_is_refused_by_name(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Settings.model_validate(wrong)
