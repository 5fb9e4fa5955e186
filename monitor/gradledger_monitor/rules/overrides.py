"""What a person chose about the rules: which are off, and other thresholds (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from gradledger_monitor.rules.definition import Parameter, RuleDefinition

OFF = "switched off in the settings"
JUDGED_WITH = "judged with"

Place = tuple[str, ...]  # a setting, and what in it


def was_chosen(said: str) -> bool:
    """Whether what is said of a rule tells that it was not asked as by default."""
    return OFF in said or JUDGED_WITH in said


@dataclass(frozen=True)
class RuleOverrides:
    """Patterns of rules that are off, and thresholds by rule and name."""

    off: tuple[str, ...] = ()
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def is_off(self, rule: str) -> bool:
        """Whether the rule is not to be asked."""
        return any(fnmatchcase(rule, pattern) for pattern in self.off)

    def check(self, known: Mapping[str, type[RuleDefinition]]) -> None:
        """Raise ValueError, saying what exists, when a choice is about nothing or cannot be."""
        for place, why in self.wrong(known):
            raise ValueError(f"{'.'.join(place)}: {why}")

    def wrong(self, known: Mapping[str, type[RuleDefinition]]) -> Iterator[tuple[Place, str]]:
        """The choices that are about nothing or cannot be, with the reason and the way out."""
        for pattern in self.off:
            if not any(fnmatchcase(rule, pattern) for rule in known):
                yield ("rules_off", pattern), "no rule matches it; see `gradledger rules`"
        for rule, values in self.thresholds.items():
            if rule not in known:
                yield ("thresholds", rule), f"there is no rule {rule!r}; see `gradledger rules`"
                continue
            parameters = known[rule].parameters()
            for name, value in values.items():
                why = _misfit(parameters, name, value)
                if why:
                    yield ("thresholds", rule, name), why

    def judged_with(self, rule: type[RuleDefinition]) -> str:
        """The thresholds of a rule that are not the default, in words; else nothing."""
        known, said = rule.parameters(), self.thresholds.get(rule.id(), {})
        values = {name: (value, known[name].default) for name, value in said.items()}
        other = [f"{n} = {v:g} (default {d:g})" for n, (v, d) in values.items() if v != d]
        return f"{JUDGED_WITH} {', '.join(other)}" if other else ""


def _misfit(parameters: Mapping[str, Parameter[Any]], name: str, value: float) -> str:
    if name not in parameters:
        return f"there is no such threshold; it has {', '.join(parameters) or 'none'}"
    try:
        parameters[name].fit(value)
    except ValueError as error:
        return f"{error}; the default is {parameters[name].default:g}"
    return ""
