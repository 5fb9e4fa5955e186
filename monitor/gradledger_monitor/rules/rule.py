"""What a rule is: it evaluates one optimizer step after another, from facts only."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar

from msgspec import structs

from gradledger_monitor.model.findings import Outcome, Passed, Severity
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.numbers import MAX_INT64
from gradledger_monitor.model.run_history import RunHistory
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance import diagnosis
from gradledger_monitor.rules.balance.patterns import Closed, of_same_loss
from gradledger_monitor.rules.definition import RuleDefinition

HISTORY = 64  # earlier windows of the same optimizer that a rule can look back on


class Window:
    """One optimizer step, with the windows of the same optimizer that came before it."""

    def __init__(self, facts: StepFacts, past: Sequence[Closed] = ()) -> None:
        self.facts = facts
        self.past = past
        self.of_same_loss = of_same_loss(facts, past)
        # of each objective, the heaviest first; once, for all rules that read it
        self.diagnoses = diagnosis.diagnose(facts, self.of_same_loss)
        self.balance = self.diagnoses[0]
        facts.show(self.balance.objective)

    def closed(self) -> Closed:
        """What later windows can look back on."""
        return Closed.of(self.facts, self.balance)


class Precondition:
    """What must hold in a window so that a rule has anything to evaluate: "a GradScaler is in use".

    Many rules have the same precondition. It is evaluated once per window for all rules that
    declare it: ``unmet`` returns the outcome of each of them, or None where the precondition holds.
    ``steps`` returns the steps that their findings in a window are about, unless these state it;
    empty is its step.
    ``ended``: also evaluated in a record of what the process left unfinished, which is no step.
    """

    def __init__(
        self,
        name: str,
        unmet: Callable[[Window], Outcome | None],
        steps: Callable[[Window], tuple[int, ...]] | None = None,
        *,
        ended: bool = False,
    ) -> None:
        self.name = name
        self.unmet = unmet
        self.steps = steps
        self.ended = ended


def _never_unmet(window: Window) -> None:
    return None


ALWAYS = Precondition("always", _never_unmet)


class Rule(RuleDefinition):
    """A signature of single optimizer steps.

    An instance evaluates the windows of one optimizer in order, and may hold state between them.
    """

    # ``evaluate`` is called for windows in which it holds, and for no other.
    precondition: ClassVar[Precondition] = ALWAYS

    @abstractmethod
    def evaluate(self, window: Window) -> Outcome:
        """The outcome for one optimizer step."""

    def after_gap(self) -> None:
        """The windows just before the next one are missing: forget what refers to the last one."""

    def account(self) -> str:
        """What it counted up to now: the reason of ok, in the decision tree; "" if nothing."""
        return ""

    def inactivity_timeout(self) -> float | None:
        """Seconds without a step after which the rule evaluates ``Inactivity``; None is never."""
        return None

    def evaluate_inactivity(self, inactivity: Inactivity) -> Outcome | None:
        """The outcome where no step followed the last evaluated one."""
        return None


class HistoryRule(RuleDefinition):
    """A signature of the run's history, all of which it evaluates each time."""

    @abstractmethod
    def evaluate_history(self, course: RunHistory) -> Iterator[tuple[int, Outcome]]:
        """The outcomes, each with its step, in order."""


OK = Outcome("ok")  # measured, and in order


def _goes_on(window: Window) -> Outcome | None:
    return OK if window.facts.record.left_open is None else None


def _last_step(window: Window) -> tuple[int, ...]:
    """What was left unfinished has the number of a step that never came."""
    return () if window.facts.record.left_open is None else (max(window.facts.step - 1, 1),)


# Of a record of what the process left unfinished; no other rule has anything to evaluate in it.
AT_THE_END = Precondition("the process has ended", _goes_on, _last_step, ended=True)
ALSO_AT_THE_END = Precondition("any record", _never_unmet, _last_step, ended=True)


@lru_cache(maxsize=256)
def ok(reason: str) -> Outcome:
    """Measured, and in order; ``reason`` states what was judged."""
    return Outcome("ok", reason)


@lru_cache(maxsize=256)
def not_applicable(reason: str) -> Outcome:
    """The rule does not apply to this run."""
    return Outcome("not_applicable", reason)


@lru_cache(maxsize=256)
def not_measured(reason: str) -> Outcome:
    """The rule applies, and what it needs was not recorded."""
    return Outcome("not_measured", reason)


def as_count(tokens: float) -> int | float:
    """Tokens for evidence: without a fraction, unless class weights made one."""
    return int(tokens) if tokens.is_integer() and abs(tokens) <= MAX_INT64 else tokens


def finding(severity: Severity, title: str, summary: str, fix: str, **evidence: Any) -> Outcome:
    """A finding, with the numbers that it is based on."""
    return Outcome("finding", "", severity, title, summary, fix, storable(evidence))


def passed(outcome: Outcome) -> Outcome:
    """A finding on what is over by now."""
    return Passed(**structs.asdict(outcome))


def about_steps(outcome: Outcome, steps: Iterable[int]) -> Outcome:
    """A finding on these steps, ascending: of some, only this one shows what they were."""
    return structs.replace(outcome, steps=tuple(steps))


def storable(value: Any) -> Any:
    """The same evidence, with integers too large for databases and MessagePack as floats."""
    if isinstance(value, dict):
        return {key: storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return float(value) if isinstance(value, int) and abs(value) > MAX_INT64 else value


def deferred_finding(report: Callable[..., Outcome], *arguments: Any) -> Outcome:
    """A finding whose texts ``report(*arguments)`` builds, only for the step that is shown."""
    return Outcome("finding", deferred=partial(report, *arguments))
