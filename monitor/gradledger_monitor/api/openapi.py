"""What the OpenAPI document says of every route: how to show a token, which refusals may come."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from gradledger_monitor.api.middleware.access import needed
from gradledger_monitor.api.schemas import ProblemDocument, refusals

OPENAPI = "/api/v1/openapi.json"
SCHEME = "token"
EVERYWHERE: tuple[int, ...] = (421, 503)  # for another host; without the database
BODIES = (400, 411, 413)  # not what it says it is; of no known length; too long
ASKED_FOR = (401, 403, 429)  # no token; one that may not, or a page of another site; too often


def describe(app: FastAPI) -> None:
    """Add to the document of an app what no route says for itself."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        components = document.setdefault("components", {})
        _add_problem(components.setdefault("schemas", {}))
        components["securitySchemes"] = {SCHEME: {"type": "http", "scheme": "bearer"}}
        for path, item in document["paths"].items():
            for method, operation in item.items():
                scope = needed(method.upper(), path)
                _add_refusals(operation, scope)
                if scope is not None and app.state.service.settings.requires_token:
                    operation["security"] = [{SCHEME: [scope]}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _add_problem(schemas: dict[str, Any]) -> None:
    schema = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    schemas |= {**definitions, "ProblemDocument": schema}


def _add_refusals(operation: dict[str, Any], scope: str | None) -> None:
    statuses = EVERYWHERE if scope is None else (*ASKED_FOR, *EVERYWHERE)
    statuses += BODIES if "requestBody" in operation else ()
    for status, told in refusals(*statuses).items():
        operation["responses"].setdefault(str(status), told)
