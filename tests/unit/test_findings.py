"""Outcomes become findings with a life, a coverage, and one verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import pytest

from gradledger.records import Event, Term
from gradledger_monitor.evaluation.decision_tree import build_tree
from gradledger_monitor.evaluation.result import inhibit
from gradledger_monitor.evaluation.rule_outcomes import RESOLVED_AFTER
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.model.findings import EvaluationResult, Finding, Outcome, Severity
from gradledger_monitor.model.step_facts import RunInfo, StepFacts
from gradledger_monitor.rules.balance.patterns import ONE_MORE
from gradledger_monitor.rules.catalogue import RULES
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.reduction.missing_division import MissingDivision
from gradledger_monitor.rules.reduction.token_weights_unequal import TokenWeightsUnequal
from gradledger_monitor.rules.rule import (
    OK,
    Precondition,
    Rule,
    Window,
    deferred_finding,
    finding,
    not_measured,
)
from helpers.facts import facts, judged, record, term


def means(*tokens: int, share: float | None = None) -> list[Term]:
    """Micro-batch means, each with the same share."""
    return [term(n, (share or 1 / len(tokens)) / n) for n in tokens]


def step(number: int, terms: list[Term]) -> StepFacts:
    return facts(record(terms, number))


def steps(*runs: tuple[int, list[Term]]) -> list[StepFacts]:
    """Runs of steps, each with its number of steps and its terms."""
    chosen = [terms for count, terms in runs for _ in range(count)]
    return [step(number, terms) for number, terms in enumerate(chosen, 1)]


WRONG, RIGHT = means(10, 30), means(20, 20)


def only(evaluation: EvaluationResult) -> dict[str, object]:
    (finding,) = evaluation.findings
    return asdict(finding)


def test_a_finding_is_new_then_ongoing_and_counts_its_steps() -> None:
    first, later = only(judged(steps((1, WRONG)))), only(judged(steps((4, WRONG))))
    assert first["lifecycle"] == "new"
    assert later["lifecycle"] == "ongoing"
    assert (later["first_step"], later["last_step"], later["steps"]) == (1, 4, 4)


@pytest.mark.parametrize(
    ("windows", "first", "steps"),
    [
        ([[1 / 4], [1 / 4] * 4], 1, 1),  # the second one shows that the first was divided by 4
        ([[1 / 4], [1 / 4] * 4, [1 / 4] * 2], 1, 2),
        ([[1 / 4] * 4, [1 / 4] * 4, [1 / 4] * 2], 3, 1),
        ([[1 / 2] * 2, [1 / 2] * 2], None, 0),
    ],
)
def test_a_finding_begins_with_the_first_window_that_it_is_about(
    windows: list[list[float]], first: int | None, steps: int
) -> None:
    """Not with the one that showed it."""
    numbered = [
        step(number, [term(10, share / 10) for share in shares])
        for number, shares in enumerate(windows, 1)
    ]
    found = [f for f in judged(numbered).findings if f.rule == "reduction.partial_window"]
    assert [(f.first_step, f.steps) for f in found] == ([] if first is None else [(first, steps)])


@pytest.mark.parametrize(("right", "first"), [(0, 1), (3, 4)])
def test_windows_that_waited_for_another_one_count_and_balanced_ones_do_not(
    right: int, first: int
) -> None:
    def sums(n: int, divisor: float) -> list[Term]:
        return [term(k * n, 1 / divisor, "sum") for k in (1, 3)]

    balanced = [step(number + 1, sums(10, 40)) for number in range(right)]
    wrong = [step(right + i, sums(10 * i, 40 * i * 5)) for i in (1, 2, 3)]
    evaluation = judged([*balanced, *wrong])
    found = [f for f in evaluation.findings if f.rule == "reduction.balance_off"]
    assert [(f.first_step, f.last_step, f.steps) for f in found] == [(first, right + 3, 3)]


def test_a_finding_that_stays_away_is_resolved_and_one_that_returns_has_regressed() -> None:
    almost = judged(steps((2, WRONG), (RESOLVED_AFTER - 1, RIGHT)))
    away = judged(steps((2, WRONG), (RESOLVED_AFTER, RIGHT)))
    back = judged(steps((2, WRONG), (RESOLVED_AFTER, RIGHT), (1, WRONG)))
    assert [only(j)["lifecycle"] for j in (almost, away, back)] == [
        "ongoing",
        "resolved",
        "regressed",
    ]
    assert only(back)["last_step"] == 2 + RESOLVED_AFTER + 1


def test_a_structural_mistake_that_was_made_stays_in_the_verdict() -> None:
    assert judged(steps((2, WRONG), (RESOLVED_AFTER, RIGHT))).verdict == "broken"


@pytest.mark.parametrize(
    ("terms", "verdict"),
    [
        (means(20, 20), "balanced"),
        (means(10, 30), "broken"),  # d = 0.25
        (means(50, 60), "suspect"),  # d = 0.045
        (means(100, 101), "balanced"),  # d = 0.0025: information
        (means(20, 20, share=1.0), "suspect"),  # the division by K is missing
        ([], "incomplete"),
    ],
)
def test_the_verdict_is_the_worst_that_is_known(terms: list[Term], verdict: str) -> None:
    assert judged(steps((3, terms))).verdict == verdict


@pytest.mark.parametrize(
    ("terms", "severity"),
    [(means(10, 30), "error"), (means(50, 60), "warning"), (means(100, 101), "info")],
)
def test_misallocation_decides_how_bad_it_is(terms: list[Term], severity: str) -> None:
    assert only(judged(steps((3, terms))))["severity"] == severity


def test_a_mean_of_means_that_is_not_divided_is_broken_in_both_ways() -> None:
    """The division repairs no weight, so neither finding is a symptom of the other."""
    evaluation = judged(steps((2, means(10, 30, share=1.0))))
    causes = {finding.rule: finding.inhibited_by for finding in evaluation.findings}
    assert causes == {MissingDivision.id(): None, TokenWeightsUnequal.id(): None}
    assert evaluation.verdict == "broken"


@pytest.mark.parametrize(
    ("cause", "symptom", "is_apart"),
    [
        ((16, 16, 1), (3, 24, 8), True),  # it began well before, and went on
        ((20, 29, 2), (5, 31, 2), True),
        ((16, 16, 1), (8, 24, 8), False),  # a cause may be reported some steps later
        ((16, 24, 9), (3, 24, 8), False),
        ((16, 24, 1), (3, 24, 8), False),  # it goes on as long
    ],
)
def test_what_began_well_before_a_cause_and_goes_on_after_it_is_no_symptom(
    cause: tuple[int, int, int], symptom: tuple[int, int, int], is_apart: bool
) -> None:
    """First step, last step and number of steps."""

    def spanning(rule: str, severity: Severity, span: tuple[int, int, int]) -> Finding:
        return Finding(rule, 0, severity, *span, "title", "summary", "fix", {})

    zeroed = spanning("loop.zeroed_before_step", "error", cause)
    partial = spanning("reduction.partial_window", "warning", symptom)
    inhibited = inhibit([zeroed, partial], rules_by_id())[1].inhibited_by
    assert inhibited == (None if is_apart else zeroed.rule)


@pytest.mark.parametrize(("evidence", "is_cause"), [({}, False), ({"wrapper": "fsdp2"}, True)])
def test_what_is_not_reduced_explains_later_weights_only_under_fsdp2(
    evidence: dict[str, str], is_cause: bool
) -> None:
    """FSDP2 adds the gradients to a later window. Under DDP, a mean of means is another mistake."""
    apart = Finding("ddp.never_synced", 0, "error", 1, 9, 9, "title", "summary", "fix", evidence)
    unequal = Finding(TokenWeightsUnequal.id(), 0, "error", 2, 9, 8, "title", "summary", "fix", {})
    inhibited = inhibit([apart, unequal], rules_by_id())[1].inhibited_by
    assert inhibited == (apart.rule if is_cause else None)


@pytest.mark.parametrize("cause", ["loss.nonfinite", "norm.nonfinite"])
@pytest.mark.parametrize("rule", ["norm.spike", "norm.exploding", "norm.vanishing"])
def test_norms_out_of_range_before_a_value_that_is_not_finite_are_no_symptom(
    cause: str, rule: str
) -> None:
    def between(rule: str, severity: Severity, first: int, last: int) -> Finding:
        steps = last - first + 1
        return Finding(rule, 0, severity, first, last, steps, "title", "summary", "fix", {})

    nonfinite = between(cause, "error", 42, 100)
    for first, expected in ((38, None), (42, cause), (50, cause)):
        norms = between(rule, "warning", first, first + 3)
        assert inhibit([nonfinite, norms], rules_by_id())[1].inhibited_by == expected


def test_a_norm_that_is_not_finite_is_a_finding_at_both_questions() -> None:
    tree = build_tree(
        {"norm.nonfinite": Outcome("finding", severity="error"), "norm.spike": OK}, set(), {}
    )
    answers = {node.node: (node.status, node.reason) for node in tree}
    assert answers["loss"] == answers["norm"] == ("finding", "norm.nonfinite")


def test_a_run_that_was_never_measured_is_incomplete_with_the_reason() -> None:
    blind = [facts(record(means(10, 30), n, skipped=False, sync="unknown")) for n in (1, 2)]
    evaluation = judged(blind)
    assert evaluation.verdict == "incomplete"
    nodes = {node.node: (node.status, node.reason) for node in evaluation.tree}
    assert nodes["reduction"][0] == "not_measured"
    assert "combined was not seen" in nodes["reduction"][1]


def test_a_run_without_a_step_is_incomplete() -> None:
    assert RunState(RunInfo("r", "n")).result().verdict == "incomplete"


def windows(measured: str) -> list[StepFacts]:
    """One for each character: ``+`` with equal weights, ``-`` not measured, ``s`` skipped, ``0``
    not measured because all gradients are 0, ``c`` not measured, and clipped."""
    syncs = {"-": "unknown", "0": "unknown", "c": "unknown"}
    clip = Event("clip_norm", len(RIGHT), limit=1.0, norm=2.0, factor=1.0)
    return [
        facts(
            record(
                RIGHT,
                number,
                skipped=each == "s",
                sync=syncs.get(each, "none"),
                norm=0.0 if each == "0" else 1.0,
                events=[clip] if each == "c" else [],
            )
        )
        for number, each in enumerate(measured, 1)
    ]


def test_a_window_that_one_of_the_ranks_measures_counts_although_the_first_has_no_backward() -> (
    None
):
    """The first rank runs out of batches, and goes on with gradients of zeros."""
    both = [facts(record(RIGHT, n), record(RIGHT, n)) for n in range(1, 5)]
    other = facts(record([], 5), record(RIGHT, 5))
    coverage = judged([*both, other]).coverage["reduction.token_weights_unequal"]
    assert "not measured in 1 of 5 windows (rank 0: no backward of this window" in coverage


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        ("-++", "; not measured in 1 of 3 windows ("),
        ("-" * 3 + "+++", "; not measured in 3 of 6 windows ("),
        ("+" * 30 + "-" * 7, "; not measured in 7 of 37 windows ("),
        ("+-" * 15, "; not measured in 15 of 30 windows ("),
        ("+cc" * 10, "; not measured in 20 of 30 windows ("),
        ("+-cc" * 10, "; not measured in 30 of 40 windows ("),
        ("+sssss", ""),
        ("sssss+", ""),
        ("+++" + "0" * 20, ""),
        ("+" * 91 + "-" * 9, "; not measured in 9 of 100 windows ("),
    ],
)
def test_a_run_is_balanced_if_enough_windows_and_one_of_the_last_are_measured(
    measured: str, reason: str
) -> None:
    evaluation = judged(windows(measured))
    coverage = evaluation.coverage[TokenWeightsUnequal.id()]
    assert coverage.startswith(f"ok: equal weights: cross entropy{reason}")
    assert reason or coverage == "ok: equal weights: cross entropy"
    assert evaluation.verdict == "balanced"
    (answer,) = [node.reason for node in evaluation.tree if node.node == "reduction"]
    assert f"ok: {answer}" == coverage  # once, although each rule of the family states it


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        ("+--", "not measured in the last 2 windows: "),
        ("-" * 4 + "+", "measured in 1 of 5 windows: "),
        ("+" + "-" * 9, "not measured in the last 9 windows: "),
        ("+++" + "-" * 5, "not measured in the last 5 windows: "),
        ("+" * 30 + "-" * 8, "not measured in the last 8 windows: "),
        ("-" * 3 + "++", "measured in 2 of 5 windows: "),
        ("+--" * 9 + "+", "measured in 10 of 28 windows: "),
        ("+cccc" * 9 + "+", "measured in 10 of 46 windows: "),
    ],
)
def test_a_run_is_not_balanced_by_few_or_early_windows(measured: str, reason: str) -> None:
    evaluation = judged(windows(measured))
    coverage = evaluation.coverage[TokenWeightsUnequal.id()]
    assert coverage.startswith(f"not_measured: {reason}")
    assert evaluation.verdict == "incomplete"


class MeasuredOnce(Rule):
    """Measured in the first window alone."""

    def evaluate(self, window: Window) -> Outcome:
        return OK if window.facts.step == 1 else not_measured("not recorded")


class MeasuredOverTime(MeasuredOnce):
    """The same, of a rule that needs several windows."""

    by_window = False


@pytest.mark.parametrize(
    ("rule", "coverage"),
    [
        (MeasuredOnce, "not_measured: not measured in the last 9 windows: not recorded"),
        (MeasuredOverTime, "ok"),
    ],
)
def test_every_rule_that_is_about_single_windows_needs_enough_of_them(
    rule: type[Rule], coverage: str
) -> None:
    state = RunState(RunInfo("r", "n"), rules=[rule], history_rules=[])
    for each in steps((10, RIGHT)):
        state.add_facts(each)
    assert state.result().coverage[rule.id()] == coverage


@pytest.mark.parametrize("family", ["loop", "scaler", "ddp"])
def test_rules_on_loops_scalers_and_ranks_are_about_single_windows(family: str) -> None:
    """But those that compare data or models of several windows."""
    others = {"ddp.duplicate_data", "ddp.replica_drift"}
    structural = [r for r in RULES if r.id().startswith(f"{family}.") and r.kind == "S"]
    assert {r.id() for r in structural if not r.by_window} <= others


@pytest.mark.parametrize("rule", [r for r in RULES if r.kind == "S"], ids=lambda rule: rule.id())
def test_a_rule_that_needs_several_windows_is_not_about_single_ones(rule: type[Rule]) -> None:
    if any("needs" in name for name in rule.parameters()):
        assert not rule.by_window


def test_measured_windows_are_counted_across_a_snapshot() -> None:
    first, second = RunState(RunInfo("r", "n")), RunState(RunInfo("r", "n"))
    *before, last = windows("+--")
    for each in before:
        first.add_facts(each)
    second.restore(first.snapshot())
    first.add_facts(last)
    second.add_facts(last)
    assert first.result() == second.result()
    assert second.result().verdict == "incomplete"


def test_optimizers_are_evaluated_separately() -> None:
    state = RunState(RunInfo("r", "n", optimizers=["SGD", "Adam"]))
    for number in (1, 2):
        for optimizer, terms in enumerate((RIGHT, WRONG)):
            sent = record(terms, number)
            sent.optimizer = optimizer
            state.add_facts(facts(sent))
    assert only(state.result())["optimizer"] == 1


class Raises(Rule):
    """A rule with a bug."""

    def evaluate(self, window: Window) -> Outcome:
        raise ZeroDivisionError("a bug")


class Content(Rule):
    """A rule that is always content."""

    def evaluate(self, window: Window) -> Outcome:
        return OK


def test_a_rule_with_a_bug_reports_it_and_silences_no_other() -> None:
    class Silent(Content):
        @classmethod
        def id(cls) -> str:
            return "test.content"

    state = RunState(RunInfo("r", "n"), rules=[Raises, Silent], history_rules=[])
    state.add_facts(step(1, RIGHT))
    coverage = state.result().coverage
    assert coverage[Raises.id()] == "not_measured: the rule failed: ZeroDivisionError: a bug"
    assert coverage["test.content"] == "ok"


def test_a_rule_that_fails_later_does_not_stay_ok() -> None:
    class Fails(Content):
        def evaluate(self, window: Window) -> Outcome:
            return OK if window.facts.step == 1 else Raises().evaluate(window)

    state = RunState(RunInfo("r", "n"), rules=[Fails], history_rules=[])
    for number in (1, 2):
        state.add_facts(step(number, RIGHT))
    (coverage,) = state.result().coverage.values()
    assert coverage == "not_measured: the rule failed: ZeroDivisionError: a bug"


class Deferring(Rule):
    """A finding at every step whose texts are built later."""

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self.reported: list[int] = []

    def evaluate(self, window: Window) -> Outcome:
        return deferred_finding(self._report, window.facts.step)

    def _report(self, step: int) -> Outcome:
        self.reported.append(step)
        return finding("error", f"step {step}", "", "")


def test_the_texts_of_a_finding_are_built_for_the_step_that_is_shown_only() -> None:
    rules: list[Deferring] = []

    class Collected(Deferring):
        def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
            super().__init__(thresholds)
            rules.append(self)

    state = RunState(RunInfo("r", "n"), rules=[Collected], history_rules=[])
    for number in range(1, 6):
        state.add_facts(step(number, RIGHT))
    shown = [only(state.result()) for _ in range(2)]
    assert [(f["title"], f["severity"], f["steps"]) for f in shown] == [("step 5", "error", 5)] * 2
    assert [rule.reported for rule in rules] == [[5]]


def test_a_rule_whose_texts_cannot_be_built_failed() -> None:
    class WithoutTexts(Deferring):
        def _report(self, step: int) -> Outcome:
            raise ZeroDivisionError("a bug")

    state = RunState(RunInfo("r", "n"), rules=[WithoutTexts], history_rules=[])
    state.add_facts(step(1, RIGHT))
    evaluation = state.result()
    assert evaluation.findings == []
    assert set(evaluation.coverage.values()) == {
        "not_measured: the rule failed: ZeroDivisionError: a bug"
    }


def test_evaluating_again_changes_nothing() -> None:
    course = steps((3, RIGHT), (2, WRONG), (4, means(7, 9)), (1, means(5, 5, share=1.0)))
    assert asdict(judged(course)) == asdict(judged(course))
    state = RunState(course[0].run)
    results = []
    for each in course:
        state.add_facts(each)
        results.append(asdict(state.result()))
    assert results[-1] == asdict(judged(course))
    assert results[0] == asdict(judged(course[:1]))


def test_preconditions_of_one_name_are_one() -> None:
    preconditions = {rule.precondition for rule in RULES}
    assert len({precondition.name for precondition in preconditions}) == len(preconditions)


def test_every_rule_has_its_own_id() -> None:
    ids = [rule.id() for rule in RULES]
    assert len(set(ids)) == len(ids)


evaluated_preconditions: list[int] = []


def no_twenty_tokens(window: Window) -> Outcome | None:
    """The outcome for windows whose first micro-batch has 20 tokens."""
    evaluated_preconditions.append(window.facts.step)
    return OK if window.facts.applied[0][1].terms[0].tokens == 20 else None


class WaitsThenStates(Rule):
    """One more window is needed at first, and then another reason holds."""

    reasons = (ONE_MORE, "an earlier one", "the true reason")

    def evaluate(self, window: Window) -> Outcome:
        return not_measured(self.reasons[window.facts.step - 1])


class WaitsForLong(WaitsThenStates):
    """Some windows cannot be measured, and there are too few of all."""

    reasons = ("needs 30 steps", "the GradScaler skipped this step", "needs 30 steps")


class WaitsAgain(WaitsThenStates):
    """After a gap, one more window is needed again."""

    reasons = (ONE_MORE, "the true reason", ONE_MORE)


@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        (WaitsThenStates, "the true reason"),
        (WaitsForLong, "needs 30 steps"),
        (WaitsAgain, "the true reason"),
    ],
)
def test_the_reason_is_that_of_the_last_window_that_has_one(rule: type[Rule], shown: str) -> None:
    course = steps((3, RIGHT))
    state = RunState(course[0].run, rules=[rule], history_rules=[])
    for each in course:
        state.add_facts(each)
    (coverage,) = state.result().coverage.values()
    assert coverage == f"not_measured: {shown}"


class Sharing(Rule):
    """A finding in each window in which the precondition holds."""

    precondition = Precondition("not twenty tokens", no_twenty_tokens)

    def evaluate(self, window: Window) -> Outcome:
        return Outcome("finding", severity="info", title=type(self).__name__)


class SharingToo(Sharing):
    """Declares the same precondition."""


def test_a_shared_precondition_is_evaluated_once_a_window_and_findings_still_resolve() -> None:
    course = steps((2, WRONG), (RESOLVED_AFTER, RIGHT), (1, WRONG))
    state, lifecycles = RunState(course[0].run, rules=[Sharing, SharingToo], history_rules=[]), []
    evaluated_preconditions.clear()
    for each in course:
        state.add_facts(each)
        lifecycles.append({f.title: f.lifecycle for f in state.result().findings})
    both = ("Sharing", "SharingToo")
    assert len(evaluated_preconditions) == len(course)
    assert lifecycles[1] == dict.fromkeys(both, "ongoing")
    assert lifecycles[-2] == dict.fromkeys(both, "resolved")
    assert lifecycles[-1] == dict.fromkeys(both, "regressed")
