"""The page of commands, the terms of the pages, and the HTTP API, without scripts of others."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from gradledger_monitor.api.openapi import OPENAPI
from gradledger_monitor.api.pages.layout import page, run_command

router = APIRouter(include_in_schema=False)


@router.get("/docs")
def show_docs(request: Request) -> HTMLResponse:
    """How to start, the glossary, and the operations of the API from its OpenAPI document."""
    operations = _operations(request.app.openapi())
    command = run_command(request)
    return page("docs.html", operations=operations, openapi=OPENAPI, command=command)


def _operations(document: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "method": method.upper(),
            "path": path,
            "text": operation.get("description") or operation.get("summary", ""),
        }
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
