"""Converts errors into problem documents."""

from __future__ import annotations

import logging
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DatabaseError, TimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from gradledger_monitor.api.middleware.origins import SAFE_METHODS
from gradledger_monitor.api.problem_pages import respond
from gradledger_monitor.common.problems import Problem, invalid_values
from gradledger_monitor.ingest.bounds import LimitExceeded
from gradledger_monitor.store.failures import is_outage

log = logging.getLogger(__name__)


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return respond(request.scope, error)


async def _on_limit_exceeded(request: Request, error: Exception) -> Response:
    return respond(request.scope, Problem(413, str(error)))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if detail == HTTPStatus(error.status_code).phrase:  # the text of the framework: add the request
        detail = f"{request.method} {request.scope['path']}: {detail.lower()}"
    headers = dict(error.headers) if error.headers else None
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers = {"Allow": ", ".join(_allowed(request))}
    return respond(request.scope, Problem(error.status_code, detail, headers))


def _allowed(request: Request) -> list[str]:
    """The methods of a path. Starlette lists those of only one of its routes."""
    methods = set()
    for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] == Match.FULL for route in request.app.routes):
            methods.add(method)
    return sorted(methods)


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [(".".join(map(str, invalid["loc"])), invalid["msg"]) for invalid in error.errors()]
    return respond(request.scope, invalid_values(*errors))


async def _on_database_error(request: Request, error: Exception) -> Response:
    problem = outage_of(request.scope, error)
    if problem is None:
        raise error
    return respond(request.scope, problem)


def outage_of(scope: Scope, error: Exception) -> Problem | None:
    """The problem for an error which means that the database cannot be used; None for a bug."""
    is_down = isinstance(error, DatabaseError) and is_outage(error)
    if not is_down and not isinstance(error, TimeoutError):  # no connection became free
        return None
    log.error("database error: %s", error)
    stored = "" if scope["method"] in SAFE_METHODS else "Nothing of this request was stored. "
    return Problem(503, f"The database is not available. {stored}Retry after 5 s.", retry_after=5)


def internal_error(request_id: str) -> Problem:
    """The problem for an unexpected error; ``request_id`` is in its log lines."""
    detail = f"Internal error. The service logged it with request_id {request_id}."
    return Problem(500, detail, request_id=request_id)


def install(app: FastAPI) -> None:
    """Register the handlers with the app."""
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(LimitExceeded, _on_limit_exceeded)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(DatabaseError, _on_database_error)
    app.add_exception_handler(TimeoutError, _on_database_error)
