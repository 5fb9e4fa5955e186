"""What a rule is: a judge of one optimizer step after another, seeing facts only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

from gradledger_monitor.facts import StepFacts
from gradledger_monitor.findings import Outcome, Severity
from gradledger_monitor.rules import balances

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


class Rule(ABC):
    """One signature. Its id is its place: ``rules/<family>/<rule>.py``; its docstring the manual.

    An instance judges the windows of one optimizer in order and may keep state between them, but
    sees neither clock nor database: the same facts give the same outcomes.
    """

    # "S": exact counts and arithmetic; "T": statistical, needs a history and says which.
    kind: ClassVar[Literal["S", "T"]] = "S"
    # Rules whose findings this one explains, as patterns: "norm.*".
    hides: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def id(cls) -> str:
        """``family.rule``."""
        return ".".join(cls.__module__.split(".")[-2:])

    @abstractmethod
    def judge(self, window: Window) -> Outcome:
        """The answer for one optimizer step."""


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
