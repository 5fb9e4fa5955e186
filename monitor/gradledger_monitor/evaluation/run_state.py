"""The evaluation of one run up to its last step (pure).

Equal steps in an equal order give equal results: live, replayed, or after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from msgspec import structs

from gradledger_monitor.evaluation.evaluated_step import OptimizerStep, QuarantinedStep
from gradledger_monitor.evaluation.evaluator_version import version
from gradledger_monitor.evaluation.quarantine import failure_reason
from gradledger_monitor.evaluation.result import evaluation_result
from gradledger_monitor.evaluation.rule_evaluation import (
    RuleEvaluation,
    RuleGroup,
    evaluate_window,
    group_by_precondition,
)
from gradledger_monitor.evaluation.rule_outcomes import RuleOutcomes, failed
from gradledger_monitor.evaluation.snapshot_codec import (
    FORMAT,
    OptimizerState,
    Position,
    Snapshot,
    SnapshotError,
    WindowState,
    decode,
    encode,
)
from gradledger_monitor.evaluation.step_completeness import ArrivedStep
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.numbers import MAX_INT64
from gradledger_monitor.model.run_history import RunHistory
from gradledger_monitor.model.step_facts import RunInfo, StepFacts, merge
from gradledger_monitor.rules.balance.beside import Beside
from gradledger_monitor.rules.balance.patterns import Closed, Counts
from gradledger_monitor.rules.catalogue import HISTORY_RULES, RULES
from gradledger_monitor.rules.definition import RuleDefinition
from gradledger_monitor.rules.overrides import OFF, RuleOverrides
from gradledger_monitor.rules.rule import (
    HISTORY,
    HistoryRule,
    Rule,
    Window,
    not_applicable,
    not_measured,
)

Kind = TypeVar("Kind", bound=RuleDefinition)


@dataclass
class OptimizerRules:
    """The rules of one optimizer, and what they share."""

    outcomes: list[RuleOutcomes]  # of all rules in their order, including those that are off
    groups: list[RuleGroup]  # the rules that are evaluated, by precondition
    past: deque[Closed] = field(default_factory=lambda: deque(maxlen=HISTORY))
    last_window: int = 0  # the last step that was a window for the rules

    @property
    def evaluations(self) -> list[RuleEvaluation]:
        """The rules that are evaluated."""
        return [evaluation for _, evaluations in self.groups for evaluation in evaluations]


class RunState:
    """Takes the steps of a run in, in the order of each optimizer, and gives the result so far."""

    def __init__(
        self,
        info: RunInfo,
        overrides: RuleOverrides = RuleOverrides(),  # noqa: B008 (frozen)
        generation: int = 0,
        rules: Iterable[type[Rule]] = RULES,
        history_rules: Iterable[type[HistoryRule]] = HISTORY_RULES,
    ) -> None:
        self.info = info
        self.generation = generation
        self.position = Position()
        self.stored_inactivity: Mapping[OptimizerStep, Inactivity] = {}
        self.catching_up_to: dict[int, int] = {}  # last steps evaluated before a rewind
        self.saved_at_steps = 0  # ``position.steps`` of the last snapshot
        self.note: str | None = None  # on how this evaluation came about, until it is stored
        self._waiting: dict[int, ArrivedStep] = {}  # the steps that wait for ranks, by optimizer
        self._overrides = overrides
        self._rules, self._history_rules = tuple(rules), tuple(history_rules)
        self._all_rules: tuple[type[RuleDefinition], ...] = (*self._rules, *self._history_rules)
        self._optimizers: dict[int, OptimizerRules] = {}
        self._history = RunHistory()
        # Outcomes of an earlier evaluation that no rule of an optimizer continues: those of history
        # rules, and of rules that this version does not have.
        self._carried: dict[tuple[str, int], RuleOutcomes] = {}
        self._carried_to = 0

    # ------------------------------------------------------------ steps

    def add_step(self, step: ArrivedStep) -> StepFacts | QuarantinedStep | None:
        """Evaluate the next step of an optimizer. None if some rank skipped it: without its record,
        nothing is known of the step.

        Raises nothing but ``MemoryError``: a step whose records break a computation is quarantined.
        """
        position, optimizer = self.position, step.optimizer
        skipping = position.skipping.get(optimizer, {})
        lowest_rank = step.records[min(step.records)]
        if lowest_rank.left_open is None or step.step == 1:  # else it is none
            position.steps += step.step - position.reached.get(optimizer, 0) if skipping else 1
        self.add_stored_inactivity(optimizer)
        position.reached[optimizer] = step.step
        position.received[optimizer] = step.received
        position.delay[optimizer] = step.received - lowest_rank.time
        position.skipping[optimizer] = dict(step.skipping(skipping))
        if skipping and any(
            due > step.step and rank not in step.records for rank, due in skipping.items()
        ):
            return None
        return self._evaluate(step, lowest_rank.time)

    def _evaluate(self, step: ArrivedStep, time: float) -> StepFacts | QuarantinedStep:
        try:
            facts = merge(self.info, step.optimizer, step.step, step.records)
            tokens = facts.ledger.tokens if facts.ledger is not None and facts.complete else 0.0
            self.add_facts(facts)
        except Exception as error:
            reason = failure_reason(step.step, error)
            self.miss(step.optimizer, step.step, reason)
            return QuarantinedStep(
                optimizer=step.optimizer,
                step=step.step,
                time=time,
                ranks=len(step.records),
                reason=reason,
            )
        self.position.tokens = int(min(self.position.tokens + int(tokens), MAX_INT64))
        return facts

    def add_facts(self, facts: StepFacts) -> None:
        """Evaluate the facts of the next step of an optimizer.

        Raises what their arithmetic raises, before any rule has taken the step in.
        """
        if facts.unobserved is not None:
            reason = f"step {facts.step} could not be observed: {facts.unobserved}"
            self.miss(facts.optimizer, facts.step, reason)
            return
        rules = self._rules_of(facts.optimizer)
        window = Window(facts, rules.past)
        closed = window.closed()
        self._report_gap(rules, facts.step)
        ended = facts.record.left_open is not None and facts.step > 1
        for group in rules.groups:
            if not ended or group[0].ended:
                evaluate_window(group, window)
        rules.past.append(closed)
        if facts.optimizer == 0 and facts.loss_reported is not None:
            self._history.add(facts.step, facts.loss_reported)

    def _report_gap(self, rules: OptimizerRules, step: int) -> None:
        """If steps are missing before this one, rules forget what they remember of the last window.

        Steps are missing where ranks skipped them, where they were quarantined, and where records
        were lost. A rule that compares a window with the one before it must not take the last
        window before the gap for that. What rules hold of the whole run remains. In logs of other
        tools, steps have any distance: there, it is not a gap.
        """
        if self.info.imported_from is None and 0 < rules.last_window < step - 1:
            for evaluation in rules.evaluations:
                evaluation.after_gap(step)
        rules.last_window = step

    def miss(self, optimizer: int, step: int, reason: str) -> None:
        """The next step of an optimizer could not be observed or evaluated: for the rules it is a
        gap."""
        for evaluation in self._rules_of(optimizer).evaluations:
            evaluation.miss(step, reason)

    def set_eval_metrics(self, metrics: dict[str, dict[int, float]]) -> None:
        """Set all evaluation metrics of the run so far: metric -> step -> value."""
        self._history.evaluations = metrics

    # ------------------------------------------------------------ waiting and inactivity

    def wait_for(self, step: ArrivedStep, since: float) -> ArrivedStep:
        """A step that may wait for ranks, since ``since`` at the latest.

        A clock that is set back does not make it wait for longer.
        """
        waiting = self._waiting.get(step.optimizer)
        if waiting is not None and waiting.step == step.step:
            since = min(since, waiting.received)
        self._waiting[step.optimizer] = result = replace(step, received=since)
        return result

    def last_optimizer(self) -> int | None:
        """The optimizer whose step arrived last."""
        received = self.position.received
        return max(received, key=lambda optimizer: received[optimizer], default=None)

    def inactivity_timeout(self, optimizer: int) -> float | None:
        """Seconds without a step of an optimizer after which a rule evaluates ``Inactivity``."""
        rules = self._optimizers.get(optimizer)
        evaluations = [] if rules is None else rules.evaluations
        timeouts = [evaluation.inactivity_timeout() for evaluation in evaluations]
        return min((seconds for seconds in timeouts if seconds is not None), default=None)

    def is_inactive(self, optimizer: int) -> bool:
        """Whether an inactivity after the last step of an optimizer was evaluated."""
        position = self.position
        return position.inactive_after.get(optimizer) == position.reached.get(optimizer, 0)

    def add_stored_inactivity(self, optimizer: int) -> None:
        """Evaluate the inactivity that is stored after the last step of an optimizer, if any."""
        if not self.stored_inactivity:
            return
        after = self.position.reached.get(optimizer, 0)
        inactivity = self.stored_inactivity.get((optimizer, after))
        if inactivity is not None and not self.is_inactive(optimizer):
            self.position.inactive_after[optimizer] = after
            self.add_inactivity(optimizer, after, inactivity)

    def add_inactivity(self, optimizer: int, after: int, inactivity: Inactivity) -> None:
        """Evaluate an inactivity after a step of an optimizer, between this step and the next."""
        for evaluation in self._rules_of(optimizer).evaluations:
            evaluation.evaluate_inactivity(after, inactivity)

    def has_caught_up(self) -> bool:
        """Whether all steps that were evaluated before a rewind are evaluated again."""
        reached = self.position.reached
        return all(reached.get(o, 0) >= step for o, step in self.catching_up_to.items())

    # ------------------------------------------------------------ rules

    def _rules_of(self, optimizer: int) -> OptimizerRules:
        rules = self._optimizers.get(optimizer)
        if rules is None:
            rules = self._optimizers[optimizer] = self._new_rules(optimizer)
        return rules

    def _new_rules(self, optimizer: int) -> OptimizerRules:
        outcomes = [self._new_outcomes(rule, optimizer) for rule in self._rules]
        evaluations = [each for each in outcomes if isinstance(each, RuleEvaluation)]
        return OptimizerRules(outcomes, group_by_precondition(evaluations))

    def _new_outcomes(self, rule: type[Rule], optimizer: int) -> RuleOutcomes:
        """A rule that is evaluated, or the one outcome of a rule that is not."""
        outcomes = RuleOutcomes(rule.id(), optimizer)
        source = self.info.imported_from
        if self._overrides.is_off(rule.id()):
            outcomes.fold(0, not_applicable(OFF))
        elif source and not rule.works_on_metric_logs:
            outcomes.fold(0, not_measured(f"{source} does not log what this check needs"))
        else:
            return RuleEvaluation(self._instance(rule), optimizer)
        return outcomes

    def _instance(self, rule: type[Kind]) -> Kind:
        return rule(self._overrides.thresholds_of(rule))

    # ------------------------------------------------------------ the result

    def result(self) -> EvaluationResult:
        """The result up to the last step."""
        by_optimizer = [rules.outcomes for _, rules in sorted(self._optimizers.items())]
        outcomes = [each for some in by_optimizer for each in some]
        outcomes += [self._evaluate_history(rule) for rule in self._history_rules]
        current = {rule.id() for rule in self._all_rules}
        outcomes += [each for (rule, _), each in self._carried.items() if rule not in current]
        return evaluation_result(outcomes, self._all_rules, self._overrides, self.info)

    def _evaluate_history(self, rule: type[HistoryRule]) -> RuleOutcomes:
        outcomes = RuleOutcomes(rule.id(), 0)
        if self._overrides.is_off(rule.id()):
            outcomes.fold(0, not_applicable(OFF))
        elif self._optimizers:
            self._fold_history(rule, outcomes)
        return outcomes

    def _fold_history(self, rule: type[HistoryRule], outcomes: RuleOutcomes) -> None:
        carried = self._carried.get((rule.id(), 0))
        if carried is not None:
            outcomes.restore_outcomes(carried.outcomes_state())
        try:
            for step, outcome in self._instance(rule).evaluate_history(self._history):
                if carried is None or step > self._carried_to:
                    outcomes.fold(step, outcome)
        except Exception as error:
            outcomes.fold(0, failed(error))

    # ------------------------------------------------------------ snapshots

    def snapshot(self) -> bytes:
        """Everything that another process needs to continue from here."""
        return encode(
            Snapshot(
                format=FORMAT,
                evaluator=version(),
                position=self.position,
                optimizers={o: _optimizer_state(rules) for o, rules in self._optimizers.items()},
                losses=self._history.losses,
                carried=[outcomes.outcomes_state() for outcomes in self._carried.values()],
                carried_to=self._carried_to,
            )
        )

    def restore(self, data: bytes) -> None:
        """Continue from what ``snapshot`` returned. Rules that have other overrides now start anew.

        Raises ``SnapshotError`` if that is impossible; this state is unusable then.
        """
        snapshot = decode(data, version())
        try:
            self._restore(snapshot)
        except Exception as error:  # whatever is wrong, the records can be evaluated again
            raise SnapshotError(f"the snapshot is not valid: {error}") from error
        self._set_position(snapshot.position)

    def _restore(self, snapshot: Snapshot) -> None:
        for optimizer, state in snapshot.optimizers.items():
            self._optimizers[optimizer] = rules = self._new_rules(optimizer)
            _restore_optimizer(rules, state)
        self._history.losses = snapshot.losses
        for outcomes in snapshot.carried:
            self._carry(outcomes.rule, outcomes.optimizer).restore_outcomes(outcomes)
        self._carried_to = snapshot.carried_to

    def carry(self, evaluation: EvaluationResult, position: Position) -> None:
        """Continue after steps whose records are pruned, from the stored evaluation of them.

        No finding is dropped, including those of rules that this version does not have.
        """
        self._set_position(position)
        reached = position.reached
        with_finding = {(finding.rule, finding.optimizer) for finding in evaluation.findings}
        for optimizer in sorted({*reached, *(optimizer for _, optimizer in with_finding)}):
            self._optimizers[optimizer] = rules = self._new_rules(optimizer)
            rules.last_window = reached.get(optimizer, 0)
            for each in rules.evaluations:
                each.continue_after(rules.last_window, evaluation)
        current = {rule.id() for rule in self._all_rules}
        retired = sorted((rule, o) for rule, o in with_finding if rule not in current)
        for rule, optimizer in [*((rule.id(), 0) for rule in self._history_rules), *retired]:
            self._carry(rule, optimizer).carry(evaluation)
        self._carried_to = reached.get(0, 0)

    def _set_position(self, position: Position) -> None:
        self.position = position
        self.saved_at_steps = position.steps

    def _carry(self, rule: str, optimizer: int) -> RuleOutcomes:
        outcomes = self._carried[rule, optimizer] = RuleOutcomes(rule, optimizer)
        return outcomes


def _optimizer_state(rules: OptimizerRules) -> OptimizerState:
    return OptimizerState(
        last_window=rules.last_window,
        past=[WindowState(*closed) for closed in rules.past],
        rules=[evaluation.state() for evaluation in rules.evaluations],
    )


def _restore_optimizer(rules: OptimizerRules, state: OptimizerState) -> None:
    rules.last_window = state.last_window
    rules.past.extend(map(_closed, state.past))
    saved = {rule.outcomes.rule: rule for rule in state.rules}
    for evaluation in rules.evaluations:
        if evaluation.rule_id in saved:
            evaluation.restore(saved[evaluation.rule_id])


def _closed(state: WindowState) -> Closed:
    counts = tuple(Counts(*each) for each in state.counts)
    besides = tuple(Beside(*each) for each in state.beside)
    return Closed(*structs.astuple(state))._replace(counts=counts, beside=besides)
