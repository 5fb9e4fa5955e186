"""The settings page: tokens, rules and retention to edit, and all other settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse

from gradledger_monitor.api.app_state import State, StateDep
from gradledger_monitor.api.forms import MAX_NAME, read_form
from gradledger_monitor.api.middleware.credentials import may_change
from gradledger_monitor.api.pages.layout import not_found, page, redirect
from gradledger_monitor.api.routes import overrides
from gradledger_monitor.api.routes.overrides import RetentionDocument, RulesDocument
from gradledger_monitor.config.redaction import redacted
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.config.sources import environment_variable
from gradledger_monitor.rules.docs import KINDS, headlines
from gradledger_monitor.store.admin import tokens
from gradledger_monitor.store.admin.tokens import SCOPES
from gradledger_monitor.workers.runtime_overrides import DAYS

router = APIRouter(include_in_schema=False)

EDITABLE = ("rules_off", "thresholds", *DAYS)
SECTIONS = {"rules": "Rules", "retention": "Retention", "tokens": "Tokens", "service": "Service"}


@dataclass(frozen=True)
class Shown:
    """Which settings the page shows: one section or, with a filter, what matches in all."""

    section: str = "rules"
    search: str = ""
    changed: bool = False  # only settings that differ from their default

    @property
    def filtered(self) -> bool:
        """Whether there is a filter."""
        return bool(self.search) or self.changed

    def matches(self, changed: bool, *texts: str | None) -> bool:
        """Whether a setting with these texts passes the filter: each word is in one of them."""
        text = " ".join(filter(None, texts)).lower()
        words = self.search.lower().split()
        return (changed or not self.changed) and all(word in text for word in words)


@dataclass(frozen=True)
class RejectedForm:
    """A form that was not saved: its section, its values, the errors by field, and the reason."""

    section: str
    values: Mapping[str, str]
    errors: Mapping[str, str]
    reason: str


@router.get("/settings")
def show_settings(
    state: StateDep,
    search: Annotated[str, Query(max_length=256)] = "",
    changed: Annotated[str, Query(max_length=8)] = "",
) -> HTMLResponse:
    """The rules or, with a filter, the settings of all sections that match it."""
    search = search.replace("\0", "").strip()
    return show(state, Shown(search=search, changed=bool(changed)))


@router.get("/settings/{section}")
def show_section(state: StateDep, section: Annotated[str, Path(max_length=64)]) -> HTMLResponse:
    """One section of the settings."""
    if section not in SECTIONS:
        hint = f"There are no settings called {section}."
        return not_found("Settings not found", hint, "/settings", "Settings")
    return show(state, Shown(section))


def show(
    state: State,
    shown: Shown | None = None,
    secret: str = "",
    error: str = "",
    rejected: RejectedForm | None = None,
) -> HTMLResponse:
    """The page, with the result of a form: a new token or an error."""
    shown = shown or Shown()
    rules, retention = overrides.rules(state), overrides.retention(state)
    settings = _settings(state.settings, shown)
    all_tokens = tokens.list_tokens(state.store) if may_change() else []
    passing = {
        "rules": _matching_rules(rules, shown),
        "retention": [name for name in DAYS if _day_matches(name, retention, shown)],
        "tokens": [token.id for token in all_tokens if shown.matches(False, token.name, token.id)],
        "service": [setting["name"] for setting in settings],
    }
    return page(
        "settings.html",
        422 if error or rejected else 200,
        guarded=state.settings.requires_token,
        tokens=all_tokens,
        scopes=SCOPES,
        secret=secret,
        error=error,
        rules=rules,
        headlines=headlines(),
        retention=retention,
        days=[(name, Settings.model_fields[name].description) for name in DAYS],
        rejected=rejected,
        kinds=KINDS,
        settings=settings,
        sections=SECTIONS,
        shown=shown,
        passing=passing,
        open=[name for name in SECTIONS if passing[name]] if shown.filtered else [shown.section],
    )


def _matching_rules(rules: RulesDocument, shown: Shown) -> list[str]:
    """The rules that pass the filter. A form has all of them, so that saving it resets none."""
    sentences = headlines()
    return [
        rule.rule
        for rule in rules.rules
        if shown.matches(
            rule.is_changed,
            rule.rule,
            sentences[rule.rule],
            *(text for t in rule.thresholds for text in (t.name, t.meaning)),
        )
    ]


def _day_matches(name: str, retention: RetentionDocument, shown: Shown) -> bool:
    days = getattr(retention, name)
    meaning = Settings.model_fields[name].description
    return shown.matches(days.value != days.default, name, meaning, SECTIONS["retention"])


def _settings(settings: Settings, shown: Shown) -> list[dict[str, Any]]:
    rows = [
        {
            "name": name,
            "variable": environment_variable(name),
            "value": redacted(name, getattr(settings, name)),
            "changed": getattr(settings, name) != field.get_default(call_default_factory=True),
            "meaning": field.description,
        }
        for name, field in Settings.model_fields.items()
        if name not in EDITABLE
    ]
    return [
        row
        for row in rows
        if shown.matches(row["changed"], row["variable"], row["value"], row["meaning"])
    ]


# ------------------------------------------------------------------ tokens


@router.post("/settings/tokens", response_model=None)
async def create_token(request: Request, state: StateDep) -> HTMLResponse | RedirectResponse:
    """Create a token. Only the response to this request shows its secret."""
    form = await read_form(request)
    name, scope = form.get("name", "")[:MAX_NAME], form.get("scope", "")
    if not name or scope not in SCOPES:
        return await run_in_threadpool(
            show, state, Shown("tokens"), error="A token needs a name and a scope."
        )
    _, secret = await run_in_threadpool(tokens.create, state.store, name, [scope], time.time())
    return await run_in_threadpool(show, state, Shown("tokens"), secret=secret)


@router.post("/settings/tokens/{token}/revoke")
async def revoke_token(state: StateDep, token: str) -> RedirectResponse:
    """Revoke a token."""
    await run_in_threadpool(tokens.revoke, state.store, token, time.time())
    return redirect("/settings/tokens")
