"""The forms of the settings page for rules and retention: all of a section is saved at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ValidationError

from gradledger_monitor.api.app_state import State, StateDep
from gradledger_monitor.api.pages.layout import after, form
from gradledger_monitor.api.pages.settings import RejectedForm, show
from gradledger_monitor.api.routes import overrides
from gradledger_monitor.api.routes.overrides import RetentionChosen, RulesChosen
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.workers.runtime_overrides import DAYS

router = APIRouter(include_in_schema=False)

OUT_OF_RANGE = f"it must be a number of days from 0 to {overrides.MOST_DAYS:,}; 0 keeps all"

Said = Mapping[str, str]
Overrides = TypeVar("Overrides", RulesChosen, RetentionChosen)


@router.post("/settings/rules")
async def change_rules(request: Request, state: StateDep) -> Response:
    """Ask the rules otherwise; what is empty is the default."""
    return await to_thread.run_sync(_change_rules, state, await form(request))


@router.post("/settings/retention")
async def change_retention(request: Request, state: StateDep) -> Response:
    """Keep for longer or shorter; what is empty is the default."""
    return await to_thread.run_sync(_change_retention, state, await form(request))


def _change_rules(state: State, said: Said) -> Response:
    fields = [
        f"{rule}.{name}" for rule, known in rules_by_id().items() for name in known.parameters()
    ]
    numbers, wrong = _numbers(said, fields)
    chosen = _rules(numbers, said, may_switch=not state.overrides.set_in("rules_off"))
    wrong |= {
        field.removeprefix(overrides.THRESHOLDS): why
        for field, why in overrides.wrong_rules(chosen)
    }
    why = "" if wrong else _refusal(overrides.put_rules, state, chosen)
    return _answer(state, RejectedForm("rules", said, wrong, why))


def _rules(numbers: Mapping[str, float], said: Said, *, may_switch: bool) -> RulesChosen:
    thresholds: dict[str, dict[str, float]] = {}
    for field, number in numbers.items():
        rule, _, name = field.rpartition(".")
        thresholds.setdefault(rule, {})[name] = number
    told: dict[str, Any] = {"thresholds": thresholds, "revision": _revision(said)}
    if may_switch:
        told["off"] = [rule for rule in rules_by_id() if said.get(rule) == "off"]
    return RulesChosen.model_validate(told)


def _change_retention(state: State, said: Said) -> Response:
    days, wrong = _numbers(said, DAYS)
    told = {name: days.get(name) for name in DAYS if not state.overrides.set_in(name)}
    why = ""
    try:
        chosen = RetentionChosen.model_validate({**told, "revision": _revision(said)})
        why = "" if wrong else _refusal(overrides.put_retention, state, chosen)
    except ValidationError as error:
        wrong = {**{str(one["loc"][0]): OUT_OF_RANGE for one in error.errors()}, **wrong}
    return _answer(state, RejectedForm("retention", said, wrong, why))


def _numbers(said: Said, fields: Iterable[str]) -> tuple[dict[str, float], dict[str, str]]:
    """What stands in the fields that are not empty, and why some of it is no number."""
    numbers, wrong = {}, {}
    for field in fields:
        if text := said.get(field, ""):
            try:
                numbers[field] = float(text)
            except ValueError:
                wrong[field] = f"{text[:40]!r} is no number: write it like 0.05, or leave it empty"
    return numbers, wrong


def _revision(said: Said) -> int | None:
    """Which state of affairs the form was filled in on."""
    text = said.get("revision", "")
    return int(text) if text.isdecimal() and len(text) < 16 else None


def _refusal(put: Callable[[State, Overrides], object], state: State, chosen: Overrides) -> str:
    """Why it was not taken; nothing where it was."""
    try:
        put(state, chosen)
    except Problem as problem:
        return problem.detail
    return ""


def _answer(state: State, rejected: RejectedForm) -> Response:
    if rejected.errors or rejected.reason:
        return show(state, rejected=rejected)
    return after(f"/settings#{rejected.section}")
