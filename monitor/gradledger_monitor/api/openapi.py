"""Adds to the OpenAPI document what applies to all routes: authorization and problem responses."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from gradledger_monitor.api.middleware.access import required_scope
from gradledger_monitor.api.schemas import ProblemDocument, problems

OPENAPI = "/api/v1/openapi.json"
SCHEME = "token"
ALL_ROUTES: tuple[int, ...] = (421, 503)  # host not allowed; database not available
WITH_BODY = (400, 411, 413)  # malformed; no Content-Length; too large
WITH_SCOPE = (401, 403, 429)  # no token; scope missing or another site; rate limit


def describe(app: FastAPI) -> None:
    """Extend the OpenAPI document of an app."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        components = document.setdefault("components", {})
        _add_problem_schema(components.setdefault("schemas", {}))
        components["securitySchemes"] = {SCHEME: {"type": "http", "scheme": "bearer"}}
        for path, item in document["paths"].items():
            for method, operation in item.items():
                scope = required_scope(method.upper(), path)
                _add_problem_responses(operation, scope)
                if scope is not None and app.state.service.settings.requires_token:
                    operation["security"] = [{SCHEME: [scope]}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _add_problem_schema(schemas: dict[str, Any]) -> None:
    schema = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    schemas |= {**definitions, "ProblemDocument": schema}


def _add_problem_responses(operation: dict[str, Any], scope: str | None) -> None:
    statuses = ALL_ROUTES if scope is None else (*WITH_SCOPE, *ALL_ROUTES)
    statuses += WITH_BODY if "requestBody" in operation else ()
    for status, response in problems(*statuses).items():
        operation["responses"].setdefault(str(status), response)
