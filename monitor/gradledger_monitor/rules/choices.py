"""What a person chose about the rules: which are off, and other thresholds (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from gradledger_monitor.rules.base import Signature

OFF = "switched off in the settings"


@dataclass(frozen=True)
class Choices:
    """Patterns of rules that are off, and thresholds by rule and name."""

    off: tuple[str, ...] = ()
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def is_off(self, rule: str) -> bool:
        """Whether the rule is not to be asked."""
        return any(fnmatchcase(rule, pattern) for pattern in self.off)

    def check(self, known: Mapping[str, type[Signature]]) -> None:
        """Raise ValueError, saying what exists, when a choice is about nothing."""
        for pattern in self.off:
            if not any(fnmatchcase(rule, pattern) for rule in known):
                raise ValueError(f"rules_off: no rule matches {pattern!r}; see `gradledger rules`")
        for rule, values in self.thresholds.items():
            if rule not in known:
                raise ValueError(f"thresholds: there is no rule {rule!r}; see `gradledger rules`")
            parameters = known[rule].parameters()
            for name in values:
                if name not in parameters:
                    has = ", ".join(parameters) or "none"
                    raise ValueError(f"thresholds: {rule} has no {name!r}; it has {has}")
