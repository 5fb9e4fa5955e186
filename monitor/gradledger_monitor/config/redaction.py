"""Values of settings without their secrets."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, SecretStr
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError


def redacted(name: str, value: Any) -> str:
    """The value as text, with secrets removed."""
    if isinstance(value, SecretStr):
        return "(set, hidden)"
    if name == "db":
        return _without_password(value)
    if isinstance(value, list):
        value = [v.model_dump(mode="json") if isinstance(v, BaseModel) else v for v in value]
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _without_password(url: str) -> str:
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:  # it may contain a password all the same
        return "(not a database URL)"
