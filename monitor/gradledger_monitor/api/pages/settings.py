"""The settings page: tokens, alerts, rules and retention to edit, and all other settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse

from gradledger_monitor.alerts.roster import stored_routes
from gradledger_monitor.api.app_state import State, StateDep
from gradledger_monitor.api.forms import MAX_NAME, read_form
from gradledger_monitor.api.pages.layout import may_change, page, redirect
from gradledger_monitor.api.routes import overrides
from gradledger_monitor.api.routes.alerts import shown_channel
from gradledger_monitor.config.redaction import redacted
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.config.sources import environment_variable
from gradledger_monitor.model.findings import SEVERITIES
from gradledger_monitor.rules.docs import KINDS, headline, rules_by_id
from gradledger_monitor.store.admin import tokens
from gradledger_monitor.store.admin.tokens import SCOPES
from gradledger_monitor.workers.runtime_overrides import DAYS

router = APIRouter(include_in_schema=False)

EDITABLE = ("rules_off", "thresholds", *DAYS)


@dataclass(frozen=True)
class RejectedForm:
    """A form that was not saved: its section, its values, the errors by field, and the reason."""

    section: str
    values: Mapping[str, str]
    errors: Mapping[str, str]
    reason: str


@router.get("/settings")
def show_settings(state: StateDep) -> HTMLResponse:
    """All settings."""
    return show(state)


def show(
    state: State,
    secret: str = "",
    error: str = "",
    message: str = "",
    signing_secret: str = "",
    rejected: RejectedForm | None = None,
) -> HTMLResponse:
    """The page, with the result of a form: a new secret, an error or a message."""
    roster = state.alerts.roster()
    stored = stored_routes(state.store)
    return page(
        "settings.html",
        422 if error or rejected else 200,
        guarded=state.settings.requires_token,
        tokens=tokens.list_tokens(state.store) if may_change() else [],
        scopes=SCOPES,
        secret=secret,
        error=error,
        message=message,
        signing_secret=signing_secret,
        channels=[shown_channel(roster, name) for name in sorted(roster.channels)],
        routes=[route for route in roster.routes if route not in stored],
        own_routes=stored,
        severities=SEVERITIES,
        rules=overrides.rules(state),
        headlines={name: headline(rule) for name, rule in rules_by_id().items()},
        retention=overrides.retention(state),
        days=[(name, Settings.model_fields[name].description) for name in DAYS],
        rejected=rejected,
        kinds=KINDS,
        settings=_settings(state.settings),
    )


def _settings(settings: Settings) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "variable": environment_variable(name),
            "value": redacted(name, getattr(settings, name)),
            "meaning": field.description,
        }
        for name, field in Settings.model_fields.items()
        if name not in EDITABLE
    ]


# ------------------------------------------------------------------ tokens


@router.post("/settings/tokens", response_model=None)
async def create_token(request: Request, state: StateDep) -> HTMLResponse | RedirectResponse:
    """Create a token. Only the response to this request shows its secret."""
    form = await read_form(request)
    name, scope = form.get("name", "")[:MAX_NAME], form.get("scope", "")
    if not name or scope not in SCOPES:
        return await run_in_threadpool(show, state, error="A token needs a name and a scope.")
    _, secret = await run_in_threadpool(tokens.create, state.store, name, [scope], time.time())
    return await run_in_threadpool(show, state, secret=secret)


@router.post("/settings/tokens/{token}/revoke")
async def revoke_token(state: StateDep, token: str) -> RedirectResponse:
    """Revoke a token."""
    await run_in_threadpool(tokens.revoke, state.store, token, time.time())
    return redirect("/settings#tokens")
