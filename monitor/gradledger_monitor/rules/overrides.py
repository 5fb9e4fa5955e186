"""The overrides of rules that settings define: rules that are off, and other thresholds (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from gradledger_monitor.rules.definition import DEFAULTS, Parameter, RuleDefinition

OFF = "switched off in the settings"
EVALUATED_WITH = "evaluated with"

OptionPath = tuple[str, ...]  # a setting, and the keys inside it


def is_overridden(coverage: str) -> bool:
    """Whether the coverage of a rule states that it was evaluated with overrides."""
    return OFF in coverage or EVALUATED_WITH in coverage


@dataclass(frozen=True)
class RuleOverrides:
    """Patterns of rules that are off, and thresholds by rule and name."""

    off: tuple[str, ...] = ()
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def is_off(self, rule: str) -> bool:
        """Whether the rule is switched off."""
        return any(fnmatchcase(rule, pattern) for pattern in self.off)

    def thresholds_of(self, rule: type[RuleDefinition]) -> Mapping[str, float]:
        """The overridden thresholds of a rule."""
        return self.thresholds.get(rule.id(), DEFAULTS)

    def check(self, rules: Mapping[str, type[RuleDefinition]]) -> None:
        """Raise ValueError, with the way out, where an override matches nothing or is invalid."""
        for path, problem in self.problems(rules):
            raise ValueError(f"{'.'.join(path)}: {problem}")

    def problems(
        self, rules: Mapping[str, type[RuleDefinition]]
    ) -> Iterator[tuple[OptionPath, str]]:
        """The overrides that match nothing or are invalid, with the reason and the way out."""
        for pattern in self.off:
            if not any(fnmatchcase(rule, pattern) for rule in rules):
                yield ("rules_off", pattern), "no rule matches it; see `gradledger rules`"
        for rule, values in self.thresholds.items():
            if rule not in rules:
                yield ("thresholds", rule), f"there is no rule {rule!r}; see `gradledger rules`"
                continue
            parameters = rules[rule].parameters()
            for name, value in values.items():
                if problem := _problem(parameters, name, value):
                    yield ("thresholds", rule, name), problem

    def changed_thresholds(self, rule: type[RuleDefinition]) -> str:
        """The thresholds of a rule that are not the default, as text; else an empty string."""
        parameters, overridden = rule.parameters(), self.thresholds_of(rule)
        values = {name: (value, parameters[name].default) for name, value in overridden.items()}
        changed = [f"{n} = {v:g} (default {d:g})" for n, (v, d) in values.items() if v != d]
        return f"{EVALUATED_WITH} {', '.join(changed)}" if changed else ""


def _problem(parameters: Mapping[str, Parameter[Any]], name: str, value: float) -> str:
    if name not in parameters:
        return f"there is no such threshold; it has {', '.join(parameters) or 'none'}"
    try:
        parameters[name].fit(value)
    except ValueError as error:
        return f"{error}; the default is {parameters[name].default:g}"
    return ""
