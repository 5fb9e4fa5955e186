"""What every rule declares: an id, a manual, a kind and thresholds."""

from __future__ import annotations

import math
from abc import ABCMeta
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, TypeVar

from gradledger_monitor.ingest.schema import CodeRole

Value = TypeVar("Value", int, float)

LARGEST_COUNT = 1_000_000

DEFAULTS: Mapping[str, float] = MappingProxyType({})  # no threshold is overridden

# Symptoms of steps that go too far or in a wrong direction. Not of layers that have no gradient
# from the first step on, or of a loss without one: these are other mistakes.
UNSTABLE_NORMS = (
    "norm.nonfinite",
    "norm.spike",
    "norm.exploding",
    "norm.vanishing",
    "norm.gradient_ends",
)
UNSTABLE = (*UNSTABLE_NORMS, "loss.nonfinite", "loss.diverging")
SMALL_STEPS = ("norm.lost_updates", "norm.weight_decay")  # of steps that are too small


class Parameter(Generic[Value]):
    """A threshold of a rule: its meaning, and a default that settings can override.

    Counts are whole numbers from 1; other values are at least 0 and at most ``most``.
    """

    def __init__(self, default: Value, meaning: str, most: float = math.inf) -> None:
        self.default: Value = default
        self.meaning = meaning
        self.most: float = LARGEST_COUNT if isinstance(default, int) else most

    def fit(self, value: float) -> Value:
        """The value in the type of the parameter. Raises ValueError, which states the bounds."""
        kind = type(self.default)
        least = 1 if kind is int else 0
        if math.isfinite(value) and least <= value <= self.most and kind(value) == value:
            return kind(value)
        expected = "a whole number" if kind is int else "a number"
        upper = f" to {self.most:,.9g}" if math.isfinite(self.most) else " upwards"
        raise ValueError(f"{value:g} is not {expected} from {least}{upper}")

    def __get__(self, rule: object, owner: type) -> Value:
        default: Value = self.default
        return default  # an instance's own value, set by ``RuleDefinition.__init__``, comes first


class RuleMeta(ABCMeta):
    """The metaclass of rules. mypyc leaves classes that have one as Python classes, so that
    their instances have a ``__dict__``, which holds the thresholds."""


class RuleDefinition(metaclass=RuleMeta):
    """The common part of all rules.

    The id is the path, ``rules/<family>/<rule>.py``; the docstring of the class is the manual.
    A rule sees neither clock nor database: the same facts give the same outcomes.
    """

    # "S": exact counts and arithmetic; "T": statistical, needs a history and states which.
    kind: ClassVar[Literal["S", "T"]] = "S"
    # Whether a verdict may be balanced although this rule could not be evaluated: it is about the
    # data, and not about what is made of its gradients.
    secondary: ClassVar[bool] = False
    # Whether an ok is about its window alone: then a run is ok only if enough of its windows, and
    # one of the last, are measured. Not of a rule that needs several windows to measure anything,
    # as every statistical one does, or that measures some windows only.
    by_window: ClassVar[bool] = True
    # Rules whose findings this one explains, as patterns: "norm.*".
    inhibits: ClassVar[tuple[str, ...]] = ()
    # The same for findings that began later, or at the same step if the other rule comes later in
    # the catalogue, and that are not more severe: of two that may cause each other, the first one.
    inhibits_later: ClassVar[tuple[str, ...]] = ()
    # The wrapper that a finding must state for that, in its evidence; "": any, or none.
    inhibits_later_under: ClassVar[str] = ""
    # What its findings point at in the script's code, the most important first.
    points_at: ClassVar[tuple[CodeRole, ...]] = ("backward", "step")
    # Whether the statements among them that divide come before all others.
    points_at_divisions: ClassVar[bool] = False
    # Of these, a call that may be the only one of its place: later than the first windows, its line
    # is not known, and that of the usual call would be wrong.
    single_calls: ClassVar[tuple[CodeRole, ...]] = ()
    # Whether the rule reads nothing but loss, norm, learning rate and loss scale by step, so that
    # it can evaluate the log of another tool.
    works_on_metric_logs: ClassVar[bool] = False
    # The attributes that change from step to step, with their types: what a snapshot of a run holds
    # of the rule. See ``rules/state.py``.
    state: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        """Raises ValueError where a threshold is out of bounds, KeyError where it is unknown."""
        parameters = self.parameters()
        vars(self).update({name: parameter.default for name, parameter in parameters.items()})
        vars(self).update({name: parameters[name].fit(v) for name, v in thresholds.items()})

    @classmethod
    def id(cls) -> str:
        """``family.rule``."""
        return _id_of(cls)

    @classmethod
    def parameters(cls) -> Mapping[str, Parameter[Any]]:
        """The rule's thresholds by name."""
        return _parameters_of(cls)


@cache  # it is read for each rule of each result
def _id_of(rule: type[RuleDefinition]) -> str:
    return ".".join(rule.__module__.split(".")[-2:])


@cache
def _parameters_of(rule: type[RuleDefinition]) -> Mapping[str, Parameter[Any]]:
    return {name: p for name, p in vars(rule).items() if isinstance(p, Parameter)}
