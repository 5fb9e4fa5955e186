"""Overrides over HTTP: which rules are off, their thresholds, and the retention.

A value that the operator set in the environment or a file is read-only here; the response names
where it is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from gradledger_monitor.api.app_state import JsonResponse, State, StateDep
from gradledger_monitor.api.schemas import problems
from gradledger_monitor.common import clock
from gradledger_monitor.common.problems import Problem, invalid_values
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.rules.definition import Parameter, RuleDefinition
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.admin import overrides
from gradledger_monitor.store.admin.overrides import (
    RETENTION,
    RULES,
    OverridesChanged,
    StoredOverrides,
)
from gradledger_monitor.workers.runtime_overrides import DAYS

router = APIRouter(prefix="/api/v1/settings", tags=["settings"])

MAX_DAYS = 36_500
THRESHOLDS = "body.thresholds."  # prefix of the fields of thresholds

Name = Annotated[str, Field(max_length=128)]
Days = Annotated[float, Field(ge=0, le=MAX_DAYS, allow_inf_nan=False, strict=True)]
Revision = Annotated[
    Annotated[int, Field(ge=0, le=2**53, strict=True)] | None,
    Field(description="The revision that this update is based on; 409 if there is a newer one."),
]


class ThresholdDocument(BaseModel):
    """A threshold of a rule and its value; ``set_in`` is where the operator set it."""

    name: str
    meaning: str
    default: float
    value: float
    set_in: str | None


class RuleDocument(BaseModel):
    """A rule: whether it is off, and its thresholds."""

    rule: str
    kind: Literal["S", "T"]
    off: bool
    thresholds: list[ThresholdDocument]

    @property
    def family(self) -> str:
        """The first word of its id."""
        return self.rule.partition(".")[0]

    @property
    def is_changed(self) -> bool:
        """Whether it is off, or a threshold is not the default."""
        return self.off or any(t.value != t.default for t in self.thresholds)


class RulesDocument(BaseModel):
    """All rules; ``off_set_in`` is where the operator set which of them are off."""

    revision: int
    changed: float | None
    off_set_in: str | None
    rules: list[RuleDocument]


class RulesUpdate(BaseModel):
    """New overrides of the rules; a field that is absent stays unchanged."""

    model_config = ConfigDict(extra="forbid")

    off: Annotated[list[Name], Field(description="All rules that are off.")] = []
    thresholds: Annotated[
        dict[Name, dict[Name, float]],
        Field(description="By rule and name; thresholds that are absent have their defaults."),
    ] = {}
    revision: Revision = None


class DaysDocument(BaseModel):
    """Days of retention; 0 keeps all. ``set_in`` is where the operator set it."""

    value: float
    default: float
    set_in: str | None


class RetentionDocument(BaseModel):
    """How long the records of each rank are kept, and how long single steps are."""

    revision: int
    changed: float | None
    keep_detail_days: DaysDocument
    keep_steps_days: DaysDocument


class RetentionUpdate(BaseModel):
    """The new retention; null is the default, and a field that is absent stays unchanged."""

    model_config = ConfigDict(extra="forbid")

    keep_detail_days: Days | None = None
    keep_steps_days: Days | None = None
    revision: Revision = None


# ---------------------------------------------------------------- rules


@router.get("/rules", response_model=RulesDocument)
def get_rules(state: StateDep) -> JsonResponse:
    """All rules: whether they are off, their thresholds, and where the operator set them."""
    return JsonResponse(rules(state).model_dump())


@router.put("/rules", response_model=RulesDocument, responses=problems(409, 422))
def put_rules(state: StateDep, update: RulesUpdate) -> JsonResponse:
    """Override rules and thresholds. Changes apply from the next evaluation of active runs."""
    if errors := [*invalid_rules(update)]:
        raise invalid_values(*errors)
    _refuse_read_only(_read_only_rules(state, update))
    stored = state.overrides.stored(RULES)
    current = RuleOverrides(**stored.value)
    off = list(current.off)
    if "off" in update.model_fields_set and not state.overrides.set_in("rules_off"):
        off = sorted(set(update.off))
    thresholds = current.thresholds
    if "thresholds" in update.model_fields_set:
        thresholds = _new_thresholds(state, update, current)
    _write(state, RULES, stored, {"off": off, "thresholds": thresholds}, update.revision)
    return JsonResponse(rules(state).model_dump())


def rules(state: State) -> RulesDocument:
    """The rules with their current overrides."""
    stored, effective = state.overrides.stored(RULES), state.overrides.rule_overrides()
    return RulesDocument(
        revision=stored.revision,
        changed=stored.changed,
        off_set_in=state.overrides.set_in("rules_off"),
        rules=[_rule(state, effective, name, rule) for name, rule in rules_by_id().items()],
    )


def _rule(
    state: State, effective: RuleOverrides, name: str, rule: type[RuleDefinition]
) -> RuleDocument:
    overridden = effective.thresholds.get(name, {})
    thresholds = [
        ThresholdDocument(
            name=key,
            meaning=parameter.meaning,
            default=parameter.default,
            value=overridden.get(key, parameter.default),
            set_in=state.overrides.set_in("thresholds", name, key),
        )
        for key, parameter in rule.parameters().items()
    ]
    off = effective.is_off(name)
    return RuleDocument(rule=name, kind=rule.kind, off=off, thresholds=thresholds)


def invalid_rules(update: RulesUpdate) -> Iterator[tuple[str, str]]:
    """The invalid fields of an update, each with the reason."""
    definitions = rules_by_id()
    for rule in update.off:
        if rule not in definitions:
            yield "body.off", f"there is no rule {rule!r}; see `gradledger rules`"
    for path, reason in RuleOverrides((), update.thresholds).problems(definitions):
        yield ".".join(("body", *path)), reason


def _read_only_rules(state: State, update: RulesUpdate) -> Iterator[tuple[str, str]]:
    """Fields that the operator set and the update would change, each with where it is set."""
    effective, set_in = state.overrides.rule_overrides(), state.overrides.set_in("rules_off")
    off = {rule for rule in rules_by_id() if effective.is_off(rule)}
    if set_in and "off" in update.model_fields_set and set(update.off) != off:
        yield "off", set_in
    for rule, values in update.thresholds.items():
        for name, value in values.items():
            set_in = state.overrides.set_in("thresholds", rule, name)
            if set_in and value != effective.thresholds[rule][name]:
                yield f"thresholds.{rule}.{name}", set_in


def _new_thresholds(
    state: State, update: RulesUpdate, current: RuleOverrides
) -> dict[str, dict[str, float]]:
    """The thresholds to store: those of the update that are not the default.

    Where the operator set a threshold, the stored one is kept. It applies again as soon as the
    operator no longer sets it.
    """
    thresholds: dict[str, dict[str, float]] = {}
    for rule, definition in rules_by_id().items():
        values = update.thresholds.get(rule, {})
        for name, parameter in definition.parameters().items():
            set_in = state.overrides.set_in("thresholds", rule, name)
            source = current.thresholds.get(rule, {}) if set_in else values
            if _differs(parameter, source.get(name)):
                thresholds.setdefault(rule, {})[name] = parameter.fit(source[name])
    return thresholds


def _differs(parameter: Parameter[Any], value: float | None) -> bool:
    return value is not None and value != parameter.default


# ---------------------------------------------------------------- retention


@router.get("/retention", response_model=RetentionDocument)
def get_retention(state: StateDep) -> JsonResponse:
    """How long records and steps are kept, and where the operator set it."""
    return JsonResponse(retention(state).model_dump())


@router.put("/retention", response_model=RetentionDocument, responses=problems(409, 422))
def put_retention(state: StateDep, update: RetentionUpdate) -> JsonResponse:
    """Change the retention. It applies with the next retention pass, within the hour."""
    days = {name: getattr(update, name) for name in DAYS if name in update.model_fields_set}
    set_in = {name: state.overrides.set_in(name) for name in days}
    changed = ((name, set_in[name]) for name in days if days[name] != state.overrides.days(name))
    _refuse_read_only((name, where) for name, where in changed if where)
    days = {name: value for name, value in days.items() if not set_in[name]}
    stored = state.overrides.stored(RETENTION)
    value = {n: v for n, v in {**stored.value, **days}.items() if v is not None}
    _write(state, RETENTION, stored, value, update.revision)
    return JsonResponse(retention(state).model_dump())


def retention(state: State) -> RetentionDocument:
    """The retention as it is now."""
    stored = state.overrides.stored(RETENTION)
    days = {
        name: DaysDocument(
            value=state.overrides.days(name),
            default=Settings.model_fields[name].default,
            set_in=state.overrides.set_in(name),
        )
        for name in DAYS
    }
    return RetentionDocument(revision=stored.revision, changed=stored.changed, **days)


# ---------------------------------------------------------------- both


def _refuse_read_only(fields: Iterator[tuple[str, str]]) -> None:
    for field, set_in in fields:
        raise Problem(409, f"{field} is set in {set_in}. Change it there.")


def _write(
    state: State, name: str, stored: StoredOverrides, value: dict[str, Any], base: int | None
) -> None:
    """Replace the stored overrides, unless there is a newer revision than ``base``."""
    try:
        if base not in (None, stored.revision):
            raise OverridesChanged
        overrides.write(state.store, name, value, clock.now(), stored.revision)
    except OverridesChanged as error:
        detail = "These settings have changed since you loaded them. Nothing was saved."
        raise Problem(409, detail) from error
