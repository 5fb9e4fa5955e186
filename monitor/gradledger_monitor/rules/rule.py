"""What a rule is: a judge of one optimizer step after another, seeing facts only."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

from gradledger_monitor.model.findings import Outcome, Severity
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.numbers import MAX_INT64
from gradledger_monitor.model.run_history import RunHistory
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules import balance_diagnosis
from gradledger_monitor.rules.definition import RuleDefinition

HISTORY = 64  # windows of the same optimizer that a rule may look back on


class Window:
    """One optimizer step, with the windows of the same optimizer that came before it."""

    def __init__(self, facts: StepFacts, past: Sequence[balance_diagnosis.Closed] = ()) -> None:
        self.facts = facts
        self.past = past
        # what the window's balance says, told once for all rules that ask
        self.balance = balance_diagnosis.diagnose(facts, past)

    def closed(self) -> balance_diagnosis.Closed:
        """What later windows may look back on."""
        return balance_diagnosis.Closed.of(self.facts, self.balance)


class Rule(RuleDefinition):
    """A signature of single optimizer steps.

    An instance judges the windows of one optimizer in order, and may keep state between them.
    """

    @staticmethod
    def unless(window: Window) -> Outcome | None:
        """The calm answer where the rule's question does not arise; None where it does.

        Of the rules that share it, it is asked once a window; ``judge`` is asked after a None only.
        """
        return None

    def after_gap(self) -> None:
        """The windows just before the next one were not seen: forget what speaks of the last."""

    @abstractmethod
    def evaluate(self, window: Window) -> Outcome:
        """The answer for one optimizer step."""

    def patience(self) -> float | None:
        """Seconds without a step after which the rule judges ``Inactivity``; None is never."""
        return None

    def evaluate_inactivity(self, silence: Inactivity) -> Outcome | None:
        """The answer when no step came after the last one judged."""
        return None


class HistoryRule(RuleDefinition):
    """A signature of the run's course, judged over all of it each time."""

    @abstractmethod
    def evaluate_history(self, course: RunHistory) -> Iterator[tuple[int, Outcome]]:
        """The answers, each with its step, in order."""


OK = Outcome("ok")  # measured, and in order


@lru_cache(maxsize=256)
def not_applicable(reason: str) -> Outcome:
    """The question does not arise in this run."""
    return Outcome("not_applicable", reason)


@lru_cache(maxsize=256)
def not_measured(reason: str) -> Outcome:
    """It should have been seen and was not."""
    return Outcome("not_measured", reason)


def counted(number: int, noun: str) -> str:
    """A number and what it counts: ``1 token``, ``4 micro-batches``."""
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{ending}"


def as_count(tokens: float) -> int | float:
    """Tokens as evidence has them: without a fraction, unless class weights made one."""
    return int(tokens) if tokens.is_integer() and abs(tokens) <= MAX_INT64 else tokens


def finding(severity: Severity, title: str, summary: str, fix: str, **evidence: Any) -> Outcome:
    """The rule's claim, with the numbers that it rests on."""
    return Outcome("finding", "", severity, title, summary, fix, storable(evidence))


def storable(value: Any) -> Any:
    """The same evidence, with whole numbers that no database and no MessagePack holds as floats."""
    if isinstance(value, dict):
        return {key: storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return float(value) if isinstance(value, int) and abs(value) > MAX_INT64 else value


def claim(report: Callable[..., Outcome], *of: Any) -> Outcome:
    """A finding whose words ``report(*of)`` puts together for the step that is shown."""
    return Outcome("finding", deferred=partial(report, *of))
