"""Settings that can be changed while the service runs: overrides of rules, and retention.

Precedence: first the environment or the configuration file of the operator, then the overrides in
the database, then the default. Each threshold is a separate setting.
"""

from __future__ import annotations

from typing import Any

from gradledger_monitor.config.settings import Settings, setting_names
from gradledger_monitor.config.sources import origin
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.admin import overrides
from gradledger_monitor.store.admin.overrides import RETENTION, RULES, StoredOverrides
from gradledger_monitor.store.admin.retention import RetentionPolicy
from gradledger_monitor.store.database import Store

UNKNOWN_SOURCE = "how it was started"
DATABASE = "the database"
DAYS = ("keep_detail_days", "keep_steps_days")


class RuntimeOverrides:
    """The effective overrides. They are read on every use, because other processes change them."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings, self._store = settings, store

    def rule_overrides(self) -> RuleOverrides:
        """The effective overrides of rules."""
        stored = RuleOverrides(**self.stored(RULES).value)
        off = self._settings.rules_off if self.set_in("rules_off") else stored.off
        configured = self._settings.thresholds
        thresholds = {
            rule: {**stored.thresholds.get(rule, {}), **configured.get(rule, {})}
            for rule in sorted({*stored.thresholds, *configured})
        }
        return _without_unknown(RuleOverrides(tuple(sorted(off)), thresholds))

    def policy(self) -> RetentionPolicy:
        """The effective retention policy."""
        detail_days, steps_days = (self.days(name) for name in DAYS)
        return RetentionPolicy(detail_days=detail_days, steps_days=steps_days)

    def days(self, name: str) -> float:
        """The effective value of a setting of the retention policy."""
        configured: float = getattr(self._settings, name)
        stored: float | None = self.stored(RETENTION).value.get(name)
        return configured if stored is None or self.set_in(name) else stored

    def effective(self) -> dict[str, tuple[Any, str]]:
        """Effective values by setting, each with its source as text."""
        rules = self.rule_overrides()
        source_of_off = self.set_in("rules_off") or (DATABASE if rules.off else "default")
        values: dict[str, tuple[Any, str]] = {
            "rules_off": (list(rules.off), source_of_off),
            "thresholds": (rules.thresholds, self._sources(rules)),
        }
        stored = self.stored(RETENTION).value
        for name in DAYS:
            source = self.set_in(name) or (DATABASE if name in stored else "default")
            values[name] = (self.days(name), source)
        return values

    def _sources(self, rules: RuleOverrides) -> str:
        names_by_source: dict[str, list[str]] = {}
        for rule, values in rules.thresholds.items():
            for name in values:
                source = self.set_in("thresholds", rule, name) or DATABASE
                names_by_source.setdefault(source, []).append(f"{rule}.{name}")
        if len(names_by_source) > 1:
            return "; ".join(f"{source}: {', '.join(n)}" for source, n in names_by_source.items())
        return next(iter(names_by_source), "default")

    def stored(self, name: str) -> StoredOverrides:
        """The overrides in the database."""
        return overrides.read(self._store, name)

    def set_in(self, *path: str) -> str | None:
        """Where the operator set a value, as text; None if the service may change it."""
        if not self._is_set(*path):
            return None
        try:
            return origin(Settings, setting_names, *path) or UNKNOWN_SOURCE
        except ValueError:  # the file was changed since it was read, and is invalid
            return UNKNOWN_SOURCE

    def _is_set(self, name: str, rule: str = "", threshold: str = "") -> bool:
        if rule:
            return threshold in self._settings.thresholds.get(rule, {})
        return name in self._settings.model_fields_set


def _without_unknown(rules: RuleOverrides) -> RuleOverrides:
    """Without rules and thresholds that only another version, which stored them, knows."""
    unknown = {path for path, _ in rules.problems(rules_by_id())}
    thresholds = {
        rule: {n: v for n, v in values.items() if ("thresholds", rule, n) not in unknown}
        for rule, values in rules.thresholds.items()
        if ("thresholds", rule) not in unknown
    }
    off = tuple(pattern for pattern in rules.off if ("rules_off", pattern) not in unknown)
    return RuleOverrides(off, thresholds)
