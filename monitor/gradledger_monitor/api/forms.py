"""Forms of pages: reads their bodies, and the values of their fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import parse_qs

from fastapi import Request

from gradledger_monitor.api.middleware import request_bodies

MAX_NOTE, MAX_NAME = 4_000, 256  # characters
MAX_BYTES = 65_536  # a character of a note takes 12 bytes at most

Form = Mapping[str, str]


async def read_form(request: Request) -> Form:
    """The first value of each field of a form, by name."""
    return {name: values[0] for name, values in (await read_lists(request)).items()}


async def read_lists(request: Request) -> Mapping[str, list[str]]:
    """All values of each field, trimmed. NUL is removed: a database cannot store it."""
    body = (await request_bodies.read(request, MAX_BYTES)).decode("utf-8", "replace")
    fields = parse_qs(body)
    return {name: [v.replace("\0", "").strip() for v in values] for name, values in fields.items()}


def numbers(form: Form, names: Iterable[str]) -> tuple[dict[str, float], dict[str, str]]:
    """The numbers in fields that are not empty, and the errors of the others, by field."""
    values, errors = {}, {}
    for name in names:
        if text := form.get(name, ""):
            try:
                values[name] = float(text)
            except ValueError:
                errors[name] = f"{text[:40]!r} is not a number. Example: 0.05; empty: the default"
    return values, errors


def optimizer_of(form: Form) -> int:
    """The optimizer of the finding that the form is about; 0 without the field."""
    text = form.get("optimizer", "")
    return int(text) if text.isdecimal() and len(text) < 16 else 0


def revision(form: Form) -> int | None:
    """The revision of the settings that the form was loaded with."""
    text = form.get("revision", "")
    return int(text) if text.isdecimal() and len(text) < 16 else None
