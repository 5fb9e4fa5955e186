"""The shapes of answers, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Acknowledged(BaseModel):
    """Every line of the batch is durable; run records are not counted."""

    stored: int
    duplicates: int


class LineError(BaseModel):
    """Why something was refused; ``line`` where there are lines."""

    field: str
    reason: str
    line: int | None = None


class ProblemDocument(BaseModel):
    """RFC 9457. The last four members come with refused records."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[LineError] = []
    stored: int | None = None
    duplicates: int | None = None
    refused: int | None = None


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Documented problem answers."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    content = {"application/problem+json": {"schema": schema}}
    return {status: {"description": "Problem", "content": content} for status in statuses}
