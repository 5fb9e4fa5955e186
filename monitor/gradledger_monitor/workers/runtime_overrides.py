"""What holds now of what people may change while the service runs: its rules, its retention.

What its operator said comes first, in the environment or a file; then what was chosen in the
service, which lies in the database; then the default. Each threshold is a value of its own.
"""

from __future__ import annotations

from typing import Any

from gradledger_monitor.config.settings import Settings, setting_names
from gradledger_monitor.config.sources import origin
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.admin import overrides
from gradledger_monitor.store.admin.overrides import RETENTION, RULES, StoredOverrides
from gradledger_monitor.store.admin.retention import Policy
from gradledger_monitor.store.database import Store

SOMEWHERE = "how it was started"
DATABASE = "the database"
DAYS = ("keep_detail_days", "keep_steps_days")


class RuntimeOverrides:
    """The choices of a service: asked again whenever they are needed, for others change them."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings, self._store = settings, store

    def rule_overrides(self) -> RuleOverrides:
        """What is chosen about the rules."""
        kept = RuleOverrides(**self.stored(RULES).value)
        off = self._settings.rules_off if self.set_in("rules_off") else kept.off
        given = self._settings.thresholds
        both = {
            rule: {**kept.thresholds.get(rule, {}), **given.get(rule, {})}
            for rule in sorted({*kept.thresholds, *given})
        }
        return _possible(RuleOverrides(tuple(sorted(off)), both))

    def policy(self) -> Policy:
        """For how long what is kept."""
        return Policy(*map(self.days, DAYS))

    def days(self, name: str) -> float:
        """One of the times of the policy."""
        given: float = getattr(self._settings, name)
        kept: float | None = self.stored(RETENTION).value.get(name)
        return given if kept is None or self.set_in(name) else kept

    def effective(self) -> dict[str, tuple[Any, str]]:
        """The settings that can be chosen: what holds, and where that is from, in words."""
        choices = self.rule_overrides()
        off = self.set_in("rules_off") or (DATABASE if choices.off else "default")
        told: dict[str, tuple[Any, str]] = {
            "rules_off": (list(choices.off), off),
            "thresholds": (choices.thresholds, self._places(choices)),
        }
        kept = self.stored(RETENTION).value
        for name in DAYS:
            where = self.set_in(name) or (DATABASE if name in kept else "default")
            told[name] = (self.days(name), where)
        return told

    def _places(self, choices: RuleOverrides) -> str:
        places: dict[str, list[str]] = {}
        for rule, values in choices.thresholds.items():
            for name in values:
                where = self.set_in("thresholds", rule, name) or DATABASE
                places.setdefault(where, []).append(f"{rule}.{name}")
        if len(places) > 1:
            return "; ".join(f"{where}: {', '.join(some)}" for where, some in places.items())
        return next(iter(places), "default")

    def stored(self, name: str) -> StoredOverrides:
        """What was chosen in the service."""
        return overrides.read(self._store, name)

    def set_in(self, *path: str) -> str | None:
        """Where the operator set a value, in words; None where that is left to the service."""
        if not self._given(*path):
            return None
        try:
            return origin(Settings, setting_names, *path) or SOMEWHERE
        except ValueError:  # the file was spoilt since it was read
            return SOMEWHERE

    def _given(self, name: str, rule: str = "", threshold: str = "") -> bool:
        if rule:
            return threshold in self._settings.thresholds.get(rule, {})
        return name in self._settings.model_fields_set


def _possible(choices: RuleOverrides) -> RuleOverrides:
    """Without what this version does not know: another may have written it."""
    wrong = {place for place, _ in choices.problems(rules_by_id())}
    thresholds = {
        rule: {n: v for n, v in values.items() if ("thresholds", rule, n) not in wrong}
        for rule, values in choices.thresholds.items()
        if ("thresholds", rule) not in wrong
    }
    return RuleOverrides(tuple(p for p in choices.off if ("rules_off", p) not in wrong), thresholds)
