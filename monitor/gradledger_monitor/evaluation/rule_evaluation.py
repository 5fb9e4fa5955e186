"""One rule on one optimizer: the rule, what it holds between steps, and its outcomes (pure)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gradledger_monitor.evaluation.rule_outcomes import RuleOutcomes, failed, missed
from gradledger_monitor.evaluation.snapshot_codec import MeasuredWindows, RuleEvaluationState
from gradledger_monitor.model.findings import EvaluationResult, Outcome
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules import state as rule_state
from gradledger_monitor.rules.balance.patterns import ONE_MORE
from gradledger_monitor.rules.gradient_scale_effects import is_clipped
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import Precondition, Rule, Window, about_steps

# Of these windows at the end of a run, or of this share of all, one must be measured.
LAST_WINDOWS = 8
LAST_SHARE = 0.1
# As many windows must be measured as those in which the rule cannot decide; and this share of all,
# with those whose gradients cannot be compared because the loop clips a part of them.
LEAST_SHARE = 0.25


class RuleEvaluation(RuleOutcomes):
    """A rule with its outcomes so far. An error of the rule is an outcome, and stops no other."""

    def __init__(self, rule: Rule, optimizer: int) -> None:
        super().__init__(rule.id(), optimizer)
        self.rule = rule
        self.counts_windows = rule.by_window and rule.kind == "S"
        self.last_outcome: Outcome | None = None  # of the last window
        self.windows = MeasuredWindows(0, 0, 0, "", 0)

    def count_unmeasured(self, outcome: Outcome, facts: StepFacts) -> None:
        """Count a window that is not measured: none that applies nothing, or that a later one
        explains."""
        windows, record = self.windows, facts.record
        if (
            outcome.reason != ONE_MORE
            and not record.skipped
            and any(r.micro_batches for r in facts.records.values())
            and record.norm != 0  # a step without a gradient changes nothing
        ):
            windows.unmeasured += 1
            windows.latest += 1
            windows.reason = outcome.reason
            # a clip is no reason where no loss was visible
            windows.clipped += is_clipped(facts) and all(m.terms for _, m in facts.applied)

    def miss(self, step: int, reason: str) -> None:
        """A step could not be observed or evaluated: the rule cannot report ok for the run."""
        self.fold(step, missed(reason))

    def after_gap(self, step: int) -> None:
        """The windows just before this step are missing."""
        try:
            self.rule.after_gap()
        except Exception as error:
            self.fold(step, failed(error))

    def evaluate_inactivity(self, after: int, inactivity: Inactivity) -> None:
        """No step ended for a while after this one."""
        try:
            outcome = self.rule.evaluate_inactivity(inactivity)
        except Exception as error:
            outcome = failed(error)
        if outcome is not None:
            self.fold(after, outcome)

    def inactivity_timeout(self) -> float | None:
        """Seconds without a step after which the rule evaluates ``Inactivity``."""
        try:
            return self.rule.inactivity_timeout()
        except Exception as error:  # ``evaluate`` is where a rule reports its errors
            failed(error)
            return None

    def continue_after(self, step: int, evaluation: EvaluationResult) -> None:
        """Continue from a stored evaluation that ends with this step.

        The rule itself starts anew. It must not take its first window for the first of the run.
        """
        self.carry(evaluation)
        measured = self.strongest is not None and self.strongest.status == "ok"
        self.windows = MeasuredWindows(step if measured else 0, 0, 0, "", 0)
        self.after_gap(step)

    def coverage(self) -> Outcome | None:
        """The strongest outcome, with what the rule counted where it found nothing."""
        outcome = self._coverage_of_windows(super().coverage())
        if outcome is None or outcome.status not in ("ok", "finding") or outcome.reason:
            return outcome  # a carried outcome has the account of its steps
        try:
            account = self.rule.account()
        except Exception as error:
            return failed(error)
        return msgspec.structs.replace(outcome, reason=account) if account else outcome

    def _coverage_of_windows(self, outcome: Outcome | None) -> Outcome | None:
        """The strongest outcome; if that is ok, and too few windows are measured, why not."""
        windows = self.windows
        if outcome is None or outcome.status != "ok" or not self.counts_windows:
            return outcome
        total = windows.measured + windows.unmeasured
        last = max(LAST_WINDOWS, LAST_SHARE * total)
        if windows.latest >= last or windows.latest > windows.measured:
            share = f"not measured in the last {counted(windows.latest, 'window')}"
            return Outcome("not_measured", f"{share}: {windows.reason}")
        undecided = windows.unmeasured - windows.clipped
        if windows.measured < max(LEAST_SHARE * total, undecided):
            share = f"measured in {windows.measured:,} of {counted(total, 'window')}"
            return Outcome("not_measured", f"{share}: {windows.reason}")
        if not windows.unmeasured:
            return outcome
        share = f"not measured in {windows.unmeasured:,} of {counted(total, 'window')}"
        reasons = filter(None, (outcome.reason, f"{share} ({windows.reason})"))
        return msgspec.structs.replace(outcome, reason="; ".join(reasons))

    # ------------------------------------------------------------ snapshots

    def state(self) -> RuleEvaluationState:
        """As data."""
        attributes = rule_state.attributes(self.rule)
        outcomes, windows = self.outcomes_state(), msgspec.structs.replace(self.windows)
        return RuleEvaluationState(outcomes, windows, self._thresholds(), attributes)

    def restore(self, state: RuleEvaluationState) -> None:
        """Continue from a state that ``state`` returned.

        If the thresholds of the rule differ now, only its outcomes are restored: its attributes
        come from the other thresholds.
        """
        self.restore_outcomes(state.outcomes)
        self.windows = state.windows
        if state.thresholds == self._thresholds():
            rule_state.restore(self.rule, state.attributes)

    def _thresholds(self) -> dict[str, float]:
        return {name: getattr(self.rule, name) for name in self.rule.parameters()}


# The rules of one optimizer that declare the same precondition.
RuleGroup = tuple[Precondition, list[RuleEvaluation]]


def group_by_precondition(evaluations: Iterable[RuleEvaluation]) -> list[RuleGroup]:
    """The groups of some rules, in the order of their first rules."""
    groups: dict[str, RuleGroup] = {}
    for evaluation in evaluations:
        precondition = evaluation.rule.precondition
        groups.setdefault(precondition.name, (precondition, []))[1].append(evaluation)
    return list(groups.values())


def evaluate_window(group: RuleGroup, window: Window) -> None:
    """Take the next window in, for all rules of a group."""
    precondition, evaluations = group
    try:
        unmet = precondition.unmet(window)
    except Exception as error:
        unmet = failed(error)
    for evaluation in evaluations:
        outcome = unmet
        if outcome is None:
            try:
                outcome = evaluation.rule.evaluate(window)
                if outcome.status == "finding" and precondition.steps and not outcome.steps:
                    outcome = about_steps(outcome, precondition.steps(window))
            except Exception as error:
                outcome = failed(error)
        if evaluation.counts_windows:
            if outcome.status in ("ok", "finding"):
                evaluation.windows.measured += 1
                evaluation.windows.latest = 0
            elif outcome.status == "not_measured":
                evaluation.count_unmeasured(outcome, window.facts)
        # A repeated outcome changes nothing else, unless it counts towards the end of a finding.
        if outcome is not evaluation.last_outcome or evaluation.last_finding is not None:
            evaluation.fold(window.facts.step, outcome)
            evaluation.last_outcome = outcome
