"""Forms of the settings page for rules and retention. Each form saves its whole section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ValidationError

from gradledger_monitor.api import forms
from gradledger_monitor.api.app_state import State, StateDep
from gradledger_monitor.api.forms import Form, read_form
from gradledger_monitor.api.pages.layout import redirect
from gradledger_monitor.api.pages.settings import RejectedForm, Shown, show
from gradledger_monitor.api.routes import overrides
from gradledger_monitor.api.routes.overrides import RetentionUpdate, RulesUpdate
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.workers.runtime_overrides import DAYS

router = APIRouter(include_in_schema=False)

OUT_OF_RANGE = f"it must be a number of days from 0 to {overrides.MAX_DAYS:,}; 0 keeps all"

Update = TypeVar("Update", RulesUpdate, RetentionUpdate)


@router.post("/settings/rules")
async def change_rules(request: Request, state: StateDep) -> Response:
    """Save the overrides of the rules; an empty field is the default."""
    return await to_thread.run_sync(_change_rules, state, await read_form(request))


@router.post("/settings/retention")
async def change_retention(request: Request, state: StateDep) -> Response:
    """Save the retention; an empty field is the default."""
    return await to_thread.run_sync(_change_retention, state, await read_form(request))


def _change_rules(state: State, form: Form) -> Response:
    fields = [
        f"{rule}.{name}"
        for rule, definition in rules_by_id().items()
        for name in definition.parameters()
    ]
    numbers, errors = forms.numbers(form, fields)
    update = _rules_update(numbers, form, may_switch=not state.overrides.set_in("rules_off"))
    errors |= {
        field.removeprefix(overrides.THRESHOLDS): reason
        for field, reason in overrides.invalid_rules(update)
    }
    reason = "" if errors else _save(overrides.put_rules, state, update)
    return _respond(state, RejectedForm("rules", form, errors, reason))


def _rules_update(numbers: Mapping[str, float], form: Form, *, may_switch: bool) -> RulesUpdate:
    thresholds: dict[str, dict[str, float]] = {}
    for field, number in numbers.items():
        rule, _, name = field.rpartition(".")
        thresholds.setdefault(rule, {})[name] = number
    fields: dict[str, Any] = {"thresholds": thresholds, "revision": forms.revision(form)}
    if may_switch:
        fields["off"] = [rule for rule in rules_by_id() if form.get(rule) == "off"]
    return RulesUpdate.model_validate(fields)


def _change_retention(state: State, form: Form) -> Response:
    days, errors = forms.numbers(form, DAYS)
    fields = {name: days.get(name) for name in DAYS if not state.overrides.set_in(name)}
    reason = ""
    try:
        update = RetentionUpdate.model_validate({**fields, "revision": forms.revision(form)})
        reason = "" if errors else _save(overrides.put_retention, state, update)
    except ValidationError as error:
        errors = {**{str(e["loc"][0]): OUT_OF_RANGE for e in error.errors()}, **errors}
    return _respond(state, RejectedForm("retention", form, errors, reason))


def _save(put: Callable[[State, Update], object], state: State, update: Update) -> str:
    """Save an update; return why it was refused, or an empty text."""
    try:
        put(state, update)
    except Problem as problem:
        return problem.detail
    return ""


def _respond(state: State, form: RejectedForm) -> Response:
    if form.errors or form.reason:
        return show(state, Shown(form.section), rejected=form)
    return redirect(f"/settings/{form.section}")
