"""Choices over HTTP: which rules are asked, with which thresholds, and how long things are kept.

What the operator set, in the environment or a file, is shown with its place, and changed there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from gradledger_monitor.api.app_state import JsonResponse, State, StateDep
from gradledger_monitor.api.schemas import problems
from gradledger_monitor.common import clock
from gradledger_monitor.common.problems import Problem
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

MOST_DAYS = 36_500
THRESHOLDS = "body.thresholds."  # how fields of thresholds begin

Name = Annotated[str, Field(max_length=128)]
Days = Annotated[float, Field(ge=0, le=MOST_DAYS, allow_inf_nan=False, strict=True)]
Revision = Annotated[
    Annotated[int, Field(ge=0, le=2**53, strict=True)] | None,
    Field(description="Refuse this with 409 if it was changed since this one."),
]


class ThresholdDocument(BaseModel):
    """A threshold of a rule, and what holds; ``set_in`` is where the operator set it."""

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


class RulesDocument(BaseModel):
    """All rules as they are asked; ``off_set_in`` is where the operator said which are off."""

    revision: int
    changed: float | None
    off_set_in: str | None
    rules: list[RuleDocument]


class RulesChosen(BaseModel):
    """What is to hold from now on; what is not in it stays as it is."""

    model_config = ConfigDict(extra="forbid")

    off: Annotated[list[Name], Field(description="Rules that are not asked: all of them.")] = []
    thresholds: Annotated[
        dict[Name, dict[Name, float]],
        Field(description="By rule and name; those that are not in it have their defaults."),
    ] = {}
    revision: Revision = None


class DaysDocument(BaseModel):
    """For how many days; 0 is for ever. ``set_in`` is where the operator set it."""

    value: float
    default: float
    set_in: str | None


class RetentionDocument(BaseModel):
    """For how long what each rank sent is kept, and for how long single steps are."""

    revision: int
    changed: float | None
    keep_detail_days: DaysDocument
    keep_steps_days: DaysDocument


class RetentionChosen(BaseModel):
    """What is to hold from now on; null is the default, and what is not in it stays as it is."""

    model_config = ConfigDict(extra="forbid")

    keep_detail_days: Days | None = None
    keep_steps_days: Days | None = None
    revision: Revision = None


# ---------------------------------------------------------------- rules


@router.get("/rules", response_model=RulesDocument)
def get_rules(state: StateDep) -> JsonResponse:
    """All rules: which are asked, with which thresholds, and which of that is set elsewhere."""
    return JsonResponse(rules(state).model_dump())


@router.put("/rules", response_model=RulesDocument, responses=problems(409, 422))
def put_rules(state: StateDep, said: RulesChosen) -> JsonResponse:
    """Ask the rules otherwise, from the next step on that is judged in any run."""
    _accepted([*wrong_rules(said)])
    _left_to_us(_set_elsewhere(state, said))
    before = state.overrides.stored(RULES)
    kept = RuleOverrides(**before.value)
    off = list(kept.off)
    if "off" in said.model_fields_set and not state.overrides.set_in("rules_off"):
        off = sorted(set(said.off))
    thresholds = kept.thresholds
    if "thresholds" in said.model_fields_set:
        thresholds = _other(state, said, kept)
    _write(state, RULES, before, {"off": off, "thresholds": thresholds}, said.revision)
    return JsonResponse(rules(state).model_dump())


def rules(state: State) -> RulesDocument:
    """The rules as they are asked now."""
    kept, choices = state.overrides.stored(RULES), state.overrides.rule_overrides()
    return RulesDocument(
        revision=kept.revision,
        changed=kept.changed,
        off_set_in=state.overrides.set_in("rules_off"),
        rules=[_rule(state, choices, name, rule) for name, rule in rules_by_id().items()],
    )


def _rule(
    state: State, choices: RuleOverrides, name: str, rule: type[RuleDefinition]
) -> RuleDocument:
    set_ = choices.thresholds.get(name, {})
    thresholds = [
        ThresholdDocument(
            name=key,
            meaning=parameter.meaning,
            default=parameter.default,
            value=set_.get(key, parameter.default),
            set_in=state.overrides.set_in("thresholds", name, key),
        )
        for key, parameter in rule.parameters().items()
    ]
    return RuleDocument(rule=name, kind=rule.kind, off=choices.is_off(name), thresholds=thresholds)


def wrong_rules(said: RulesChosen) -> Iterator[tuple[str, str]]:
    """Fields that say what cannot be, with the reason and the way out."""
    known = rules_by_id()
    for rule in said.off:
        if rule not in known:
            yield "body.off", f"there is no rule {rule!r}; see `gradledger rules`"
    for place, why in RuleOverrides((), said.thresholds).problems(known):
        yield ".".join(("body", *place)), why


def _set_elsewhere(state: State, said: RulesChosen) -> Iterator[tuple[str, str]]:
    """What is set elsewhere, and otherwise than here."""
    now, place = state.overrides.rule_overrides(), state.overrides.set_in("rules_off")
    is_off = {rule for rule in rules_by_id() if now.is_off(rule)}
    if place and "off" in said.model_fields_set and set(said.off) != is_off:
        yield "off", place
    for rule, values in said.thresholds.items():
        for name, value in values.items():
            place = state.overrides.set_in("thresholds", rule, name)
            if place and value != now.thresholds[rule][name]:
                yield f"thresholds.{rule}.{name}", place


def _other(state: State, said: RulesChosen, kept: RuleOverrides) -> dict[str, dict[str, float]]:
    """The thresholds to keep: those said that are not the default; where the operator set one,
    what was kept before, which holds again when he no longer does."""
    found: dict[str, dict[str, float]] = {}
    for rule, known in rules_by_id().items():
        values = said.thresholds.get(rule, {})
        for name, parameter in known.parameters().items():
            elsewhere = state.overrides.set_in("thresholds", rule, name)
            source = kept.thresholds.get(rule, {}) if elsewhere else values
            if _differs(parameter, source.get(name)):
                found.setdefault(rule, {})[name] = parameter.fit(source[name])
    return found


def _differs(parameter: Parameter[Any], value: float | None) -> bool:
    return value is not None and value != parameter.default


# ---------------------------------------------------------------- retention


@router.get("/retention", response_model=RetentionDocument)
def get_retention(state: StateDep) -> JsonResponse:
    """For how long what is kept, and which of that is set elsewhere."""
    return JsonResponse(retention(state).model_dump())


@router.put("/retention", response_model=RetentionDocument, responses=problems(409, 422))
def put_retention(state: StateDep, said: RetentionChosen) -> JsonResponse:
    """Keep for longer or shorter; what is older goes within the hour, when the service looks."""
    new = {name: getattr(said, name) for name in DAYS if name in said.model_fields_set}
    here = {name: state.overrides.set_in(name) for name in new}
    elsewhere = ((n, here[n]) for n, value in new.items() if value != state.overrides.days(n))
    _left_to_us((name, place) for name, place in elsewhere if place)
    new = {name: value for name, value in new.items() if not here[name]}
    before = state.overrides.stored(RETENTION)
    value = {n: v for n, v in {**before.value, **new}.items() if v is not None}
    _write(state, RETENTION, before, value, said.revision)
    return JsonResponse(retention(state).model_dump())


def retention(state: State) -> RetentionDocument:
    """The retention as it is now."""
    kept = state.overrides.stored(RETENTION)
    days = {
        name: DaysDocument(
            value=state.overrides.days(name),
            default=Settings.model_fields[name].default,
            set_in=state.overrides.set_in(name),
        )
        for name in DAYS
    }
    return RetentionDocument(revision=kept.revision, changed=kept.changed, **days)


# ---------------------------------------------------------------- both


def _accepted(wrong: list[tuple[str, str]]) -> None:
    if wrong:
        errors = [{"field": field, "reason": reason} for field, reason in wrong]
        raise Problem(422, "The request has values that are not accepted.", errors=errors)


def _left_to_us(elsewhere: Iterator[tuple[str, str]]) -> None:
    for field, place in elsewhere:
        raise Problem(409, f"{field} is set in {place}, and is changed there.")


def _write(
    state: State, name: str, before: StoredOverrides, value: dict[str, Any], seen: int | None
) -> None:
    """Put ``value`` in the place of what was there, on which it rests."""
    try:
        if seen not in (None, before.revision):
            raise OverridesChanged
        overrides.write(state.store, name, value, clock.now(), before.revision)
    except OverridesChanged as error:
        detail = "It was changed by somebody else since it was looked at. Nothing was saved."
        raise Problem(409, detail) from error
