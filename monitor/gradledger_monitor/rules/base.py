"""What a rule is: a judge of one optimizer step after another, seeing facts only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from gradledger_monitor.facts import StepFacts
from gradledger_monitor.findings import Outcome, Severity
from gradledger_monitor.rules import balances

if TYPE_CHECKING:
    from typing_extensions import Self

Value = TypeVar("Value", int, float)

HISTORY = 64  # windows of the same optimizer that a rule may look back on


@dataclass
class Window:
    """One optimizer step, with the windows of the same optimizer that came before it."""

    facts: StepFacts
    past: deque[balances.Closed] = field(default_factory=lambda: deque(maxlen=HISTORY))

    @cached_property
    def balance(self) -> balances.Diagnosis:
        """What the window's balance says, told once for all rules that ask."""
        return balances.diagnose(self.facts, self.past)

    def closed(self) -> balances.Closed:
        """What later windows may look back on."""
        return balances.Closed.of(self.facts, self.balance)


@dataclass
class Course:
    """The run as a whole: training losses by step of the first optimizer, and evaluations."""

    losses: dict[int, float] = field(default_factory=dict)
    evaluations: dict[str, dict[int, float]] = field(
        default_factory=dict
    )  # metric -> step -> value


class Parameter(Generic[Value]):
    """A threshold of a rule: a default that settings may replace, and what it means."""

    def __init__(self, default: Value, meaning: str) -> None:
        self.default: Value = default
        self.meaning = meaning

    def __get__(self, rule: object, owner: type) -> Value:
        default: Value = self.default
        return default  # a value that settings gave lies in the rule itself, and wins


class Signature:
    """What all rules are: a place, a manual and its manners.

    The id is the place, ``rules/<family>/<rule>.py``; the docstring of the class is the manual.
    A rule sees neither clock nor database: the same facts give the same outcomes.
    """

    # "S": exact counts and arithmetic; "T": statistical, needs a history and says which.
    kind: ClassVar[Literal["S", "T"]] = "S"
    # Rules whose findings this one explains, as patterns: "norm.*".
    hides: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def id(cls) -> str:
        """``family.rule``."""
        return ".".join(cls.__module__.split(".")[-2:])

    @classmethod
    def parameters(cls) -> dict[str, Parameter[Any]]:
        """The rule's thresholds by name."""
        return {name: p for name, p in vars(cls).items() if isinstance(p, Parameter)}

    @classmethod
    def made(cls, values: Mapping[str, float]) -> Self:
        """A rule with some of its thresholds replaced."""
        known = cls.parameters()
        rule = cls.__new__(cls)
        vars(rule).update({name: type(known[name].default)(v) for name, v in values.items()})
        rule.__init__()  # type: ignore[misc]
        return rule


class Rule(Signature, ABC):
    """A signature of single optimizer steps.

    An instance judges the windows of one optimizer in order, and may keep state between them.
    """

    @abstractmethod
    def judge(self, window: Window) -> Outcome:
        """The answer for one optimizer step."""


class CourseRule(Signature, ABC):
    """A signature of the run's course, judged over all of it each time."""

    @abstractmethod
    def judge_course(self, course: Course) -> Iterator[tuple[int, Outcome]]:
        """The answers, each with its step, in order."""


def ok() -> Outcome:
    """Measured, and in order."""
    return Outcome("ok")


def not_applicable(reason: str) -> Outcome:
    """The question does not arise in this run."""
    return Outcome("not_applicable", reason)


def not_measured(reason: str) -> Outcome:
    """It should have been seen and was not."""
    return Outcome("not_measured", reason)


def finding(severity: Severity, title: str, summary: str, fix: str, **evidence: Any) -> Outcome:
    """The rule's claim, with the numbers that it rests on."""
    return Outcome("finding", "", severity, title, summary, fix, evidence)
