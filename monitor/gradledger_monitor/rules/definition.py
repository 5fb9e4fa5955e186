"""What every rule has before it judges anything: a place, a manual, a kind and thresholds."""

from __future__ import annotations

import math
from abc import ABCMeta
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

Value = TypeVar("Value", int, float)

MOST_COUNTED = 1_000_000


class Parameter(Generic[Value]):
    """A threshold of a rule: a default that settings may replace, and what it means.

    Counts are whole and begin with 1; other values begin with 0 and end with ``most``.
    """

    def __init__(self, default: Value, meaning: str, most: float = math.inf) -> None:
        self.default: Value = default
        self.meaning = meaning
        self.most: float = MOST_COUNTED if isinstance(default, int) else most

    def fit(self, value: float) -> Value:
        """A value as the rule takes it. Raises ValueError, which says what would be right."""
        kind = type(self.default)
        least = 1 if kind is int else 0
        if math.isfinite(value) and least <= value <= self.most and kind(value) == value:
            return kind(value)
        what = "a whole number" if kind is int else "a number"
        upper = f" to {self.most:,.9g}" if math.isfinite(self.most) else " upwards"
        raise ValueError(f"{value:g} is not {what} from {least}{upper}")

    def __get__(self, rule: object, owner: type) -> Value:
        default: Value = self.default
        return default  # what ``made`` put into the rule itself is found before it


class Ordinary(ABCMeta):
    """What rules are made by: classes with a metaclass stay Python's own where all is compiled,
    so that thresholds can be put into their dictionaries."""


class RuleDefinition(metaclass=Ordinary):
    """What all rules are: a place, a manual and its manners.

    The id is the place, ``rules/<family>/<rule>.py``; the docstring of the class is the manual.
    A rule sees neither clock nor database: the same facts give the same outcomes.
    """

    # "S": exact counts and arithmetic; "T": statistical, needs a history and says which.
    kind: ClassVar[Literal["S", "T"]] = "S"
    # Rules whose findings this one explains, as patterns: "norm.*".
    hides: ClassVar[tuple[str, ...]] = ()
    # Whether loss, norm, learning rate and loss scale by step are all that it looks at, so that
    # it can judge the log of another tool.
    reads_logs: ClassVar[bool] = False
    # The attributes that change from step to step, with their types: what a snapshot of a run holds
    # of the rule. See ``rules/state.py``.
    state: ClassVar[Mapping[str, Any]] = MappingProxyType({})

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
        vars(rule).update({name: parameter.default for name, parameter in known.items()})
        vars(rule).update({name: known[name].fit(value) for name, value in values.items()})
        rule.__init__()  # type: ignore[misc]
        return rule
