"""One optimizer's rules, asked step by step (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from gradledger_monitor.evaluation.finding_state import Line, covered, failed, missed
from gradledger_monitor.evaluation.snapshot_codec import OptimizerState, RuleState, WindowState
from gradledger_monitor.model.findings import EvaluationResult, Failure, Outcome
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.rules import state as rule_state
from gradledger_monitor.rules.balance_diagnosis import Closed
from gradledger_monitor.rules.overrides import OFF, RuleOverrides
from gradledger_monitor.rules.rule import HISTORY, Rule, Window, not_applicable, not_measured

# Where the records of earlier steps and their coverage are gone: no later step makes up for them.
LOST = Failure("not_measured", "the results of an earlier evaluation are lost")

Asked = tuple[Rule, Line]  # a rule with what it said so far


@dataclass
class Panel:
    """Rules that share the question whether theirs arises, each with its line."""

    rules: list[Rule] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    said: Outcome | list[Outcome] | None = None  # last, by one for all or by each
    some_open: bool = False  # findings, which are over after so many answers that are content

    def add(self, rule: Rule, line: Line) -> None:
        """One rule more."""
        self.rules.append(rule)
        self.lines.append(line)

    @property
    def asked(self) -> Iterator[Asked]:
        """Each rule with its line."""
        return zip(self.rules, self.lines, strict=True)

    def see(self, window: Window) -> None:
        """The next window."""
        try:
            calm = self.rules[0].precondition.unmet(window)
        except Exception as error:
            calm = failed(error)
        said = calm or _judged(self.rules, window)
        if self.some_open or said != self.said:
            self._fold(window.facts.step, said)
        self.said = said

    def miss(self, step: int, reason: str) -> None:
        """A window that could not be evaluated: no rule may report ok for the whole run."""
        self.said = None
        for line in self.lines:
            line.fold(step, missed(reason))

    def after_gap(self, step: int) -> None:
        """Windows just before this step were not seen."""
        for rule, line in self.asked:
            try:
                rule.after_gap()
            except Exception as error:
                line.fold(step, failed(error))
                self.said = None

    def evaluate_inactivity(self, after: int, silence: Inactivity) -> None:
        """A silence after a step, in its place between the steps."""
        self.said = None
        for rule, line in self.asked:
            try:
                outcome = rule.evaluate_inactivity(silence)
            except Exception as error:
                outcome = failed(error)
            if outcome is not None:
                line.fold(after, outcome)

    def _fold(self, step: int, said: Outcome | list[Outcome]) -> None:
        now = said if isinstance(said, list) else [said] * len(self.rules)
        before = self.said if isinstance(self.said, list) else [self.said] * len(self.rules)
        self.some_open = False
        for place, line in enumerate(self.lines):
            if now[place] is not before[place] or line.claim is not None:  # else nothing is new
                line.fold(step, now[place])
                self.some_open = self.some_open or line.claim is not None


class Track:
    """One optimizer's rules, what became of them, and its history."""

    def __init__(
        self, rules: list[Rule], optimizer: int, choices: RuleOverrides, imported_from: str | None
    ) -> None:
        self.lines = [Line(rule.id(), optimizer) for rule in rules]
        self.past: deque[Closed] = deque(maxlen=HISTORY)
        panels: dict[str, Panel] = {}
        for rule, line in zip(rules, self.lines, strict=True):
            if choices.is_off(line.rule):
                line.fold(0, not_applicable(OFF))
            elif imported_from and not rule.works_on_metric_logs:
                line.fold(0, not_measured(f"{imported_from} does not log what this rule looks at"))
            else:
                panels.setdefault(rule.precondition.name, Panel()).add(rule, line)
        self.panels = list(panels.values())
        self._every_step = imported_from is None  # logs of other tools skip steps as they like
        self.step = 0

    def see(self, window: Window) -> None:
        """The next step; where others lie before it, rules do not take it for the next one."""
        step, closed = window.facts.step, window.closed()  # what can raise, before any rule sees it
        if self._every_step and step > self.step + 1 and self.step:
            for panel in self.panels:
                panel.after_gap(step)
        self.step = step
        for panel in self.panels:
            panel.see(window)
        self.past.append(closed)

    def miss(self, step: int, reason: str) -> None:
        """The next step could not be evaluated: for the rules there is a gap where it was."""
        for panel in self.panels:
            panel.miss(step, reason)

    def inactivity_timeout(self) -> float | None:
        """Seconds without a step after which a rule judges ``Inactivity``."""
        known = [_patience(rule) for rule, _ in self.asked]
        return min((seconds for seconds in known if seconds is not None), default=None)

    @property
    def asked(self) -> Iterator[Asked]:
        """The rules that are on, each with its line."""
        return chain.from_iterable(panel.asked for panel in self.panels)

    def state(self) -> OptimizerState:
        """As data."""
        return OptimizerState(
            step=self.step,
            past=[_window_state(closed) for closed in self.past],
            rules=[_rule_state(rule, line) for rule, line in self.asked],
        )

    def restore(self, state: OptimizerState) -> None:
        """Go on from what ``state`` gave. Rules that are asked otherwise now begin anew."""
        self.step = state.step
        self.past.extend(_closed(window) for window in state.past)
        saved = {rule.line.rule: rule for rule in state.rules}
        for rule, line in self.asked:
            if line.rule in saved:
                _restore_rule(rule, line, saved[line.rule])

    def carry(self, step: int, evaluation: EvaluationResult) -> None:
        """Go on after a step up to which only the judgement is stored.

        The rules begin anew. A rule must not take its first window for the first of the run.
        """
        self.step = step
        for rule, line in self.asked:
            carry(line, evaluation)
            rule.after_gap()


def carry(line: Line, evaluation: EvaluationResult) -> None:
    """Go on with what a stored judgement says of a rule and an optimizer."""
    found = [f for f in evaluation.findings if (f.rule, f.optimizer) == (line.rule, line.optimizer)]
    text = evaluation.coverage.get(line.rule)
    outcome = None if text is None else covered(text)
    line.carry(next(iter(found), None), outcome if evaluation.coverage else LOST)


def _rule_state(rule: Rule, line: Line) -> RuleState:
    return RuleState(line.state(), _thresholds(rule), rule_state.attributes(rule))


def _restore_rule(rule: Rule, line: Line, saved: RuleState) -> None:
    """Of a rule with other thresholds, only what it found: its attributes came of the old ones."""
    line.restore(saved.line)
    if saved.thresholds == _thresholds(rule):
        rule_state.restore(rule, saved.attributes)


def _window_state(closed: Closed) -> WindowState:
    return WindowState(closed.micro_batches, closed.balance, closed.tokens, closed.pattern)


def _closed(state: WindowState) -> Closed:
    return Closed(state.micro_batches, state.balance, state.tokens, state.pattern)


def _patience(rule: Rule) -> float | None:
    """A rule that raises waits for nothing; ``judge`` is where it reports the error."""
    try:
        return rule.inactivity_timeout()
    except Exception as error:
        failed(error)
        return None


def _judged(rules: list[Rule], window: Window) -> list[Outcome]:
    """What each rule says."""
    said: list[Outcome] = []
    for rule in rules:
        try:
            said.append(rule.evaluate(window))
        except Exception as error:  # one rule's bug must not silence the others
            said.append(failed(error))
    return said


def _thresholds(rule: Rule) -> dict[str, float]:
    return {name: getattr(rule, name) for name in rule.parameters()}
