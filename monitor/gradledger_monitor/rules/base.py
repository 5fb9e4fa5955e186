"""What a rule is: a judge of one optimizer step after another, seeing facts only."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from gradledger_monitor.facts import StepFacts
from gradledger_monitor.findings import Outcome, Severity
from gradledger_monitor.rules import balances
from gradledger_monitor.rules.signature import Signature

MOST_WHOLE = 2**63 - 1  # the largest integer of databases
HISTORY = 64  # windows of the same optimizer that a rule may look back on

# An evaluation may come so many steps late, and finds the losses before it still there, also
# while the judge is so many steps ahead of what it has written.
LATE_STEPS = 2_048
BEFORE_EVALUATION = 10  # steps seen before it whose losses an evaluation is compared with


class Window:
    """One optimizer step, with the windows of the same optimizer that came before it."""

    def __init__(self, facts: StepFacts, past: Sequence[balances.Closed] = ()) -> None:
        self.facts = facts
        self.past = past
        # what the window's balance says, told once for all rules that ask
        self.balance = balances.diagnose(facts, past)

    def closed(self) -> balances.Closed:
        """What later windows may look back on."""
        return balances.Closed.of(self.facts, self.balance)


@dataclass
class Course:
    """The run as a whole: evaluations, and the training losses of the first optimizer by step.

    Of a long run, the losses that stay are the last ones and those just before evaluations.
    """

    losses: dict[int, float] = field(default_factory=dict)
    evaluations: dict[str, dict[int, float]] = field(
        default_factory=dict
    )  # metric -> step -> value

    def add(self, step: int, loss: float) -> None:
        """The next training loss."""
        self.losses[step] = loss
        if step % LATE_STEPS == 0:
            self._forget(step - 2 * LATE_STEPS)

    def steps_before(self, evaluation: int, order: Sequence[int]) -> Sequence[int]:
        """The last steps seen before an evaluation; none as long as more of them may come.

        ``order`` holds the steps of all losses, ascending.
        """
        end = bisect_right(order, evaluation)
        if end == len(order) and (not order or order[-1] <= evaluation - BEFORE_EVALUATION):
            return ()
        return order[max(0, end - BEFORE_EVALUATION) : end]

    def _forget(self, before: int) -> None:
        order = sorted(self.losses)
        evaluated = {step for values in self.evaluations.values() for step in values}
        near = {step for each in evaluated for step in self.steps_before(each, order)}
        self.losses = {s: v for s, v in self.losses.items() if s > before or s in near}


@dataclass(frozen=True)
class Silence:
    """No step had ended for so long when the service wrote this down: a record like others."""

    seconds: float  # since the last step came
    silent: list[int]  # ranks that showed no other sign of life either, of late
    backwards: int | None  # that ran since, on the rank that counted most; None is not known


class Rule(Signature):
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
    def judge(self, window: Window) -> Outcome:
        """The answer for one optimizer step."""

    def patience(self) -> float | None:
        """Seconds without a step after which the rule asks for a ``Silence``; None is never."""
        return None

    def judge_silence(self, silence: Silence) -> Outcome | None:
        """The answer when no step came after the last one judged."""
        return None


class CourseRule(Signature):
    """A signature of the run's course, judged over all of it each time."""

    @abstractmethod
    def judge_course(self, course: Course) -> Iterator[tuple[int, Outcome]]:
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
    return int(tokens) if tokens.is_integer() and abs(tokens) <= MOST_WHOLE else tokens


def finding(severity: Severity, title: str, summary: str, fix: str, **evidence: Any) -> Outcome:
    """The rule's claim, with the numbers that it rests on."""
    return Outcome("finding", "", severity, title, summary, fix, storable(evidence))


def storable(value: Any) -> Any:
    """The same evidence, with whole numbers that no database and no MessagePack holds as floats."""
    if isinstance(value, dict):
        return {key: storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return float(value) if isinstance(value, int) and abs(value) > MOST_WHOLE else value


def claim(report: Callable[..., Outcome], *of: Any) -> Outcome:
    """A finding whose words ``report(*of)`` puts together for the step that is shown."""
    return Outcome("finding", later=partial(report, *of))
