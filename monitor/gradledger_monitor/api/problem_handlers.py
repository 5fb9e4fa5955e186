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

from gradledger_monitor.api.pages.layout import page
from gradledger_monitor.common.problems import Problem, invalid_values
from gradledger_monitor.ingest.bounds import LimitExceeded
from gradledger_monitor.store.failures import is_outage

log = logging.getLogger(__name__)

FOR_PROGRAMS = ("/api/", "/static/", "/metrics", "/healthz", "/readyz")


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _response(request, error)


def _response(request: Request, problem: Problem) -> Response:
    """A page for a person who opens an address in a browser; a problem document otherwise."""
    opened = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if not opened or request.scope["path"].startswith(FOR_PROGRAMS):
        return problem.response()
    title = HTTPStatus(problem.status).phrase.capitalize()
    invalid = [f"{e['field']}: {e['reason']}." for e in problem.members.get("errors", ())]
    response = page(
        "not_found.html",
        problem.status,
        title=title,
        hint=" ".join([problem.detail, *invalid]),
        href="/",
        link_text="All runs",
    )
    response.headers.update(problem.headers)
    return response


async def _on_limit_exceeded(_: Request, error: Exception) -> Response:
    return Problem(413, str(error)).response()


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if detail == HTTPStatus(error.status_code).phrase:  # the text of the framework: add the request
        detail = f"{request.method} {request.scope['path']}: {detail.lower()}"
    headers = dict(error.headers) if error.headers else None
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers = {"Allow": ", ".join(_allowed(request))}
    return _response(request, Problem(error.status_code, detail, headers))


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
    return _response(request, invalid_values(*errors))


async def _on_database_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, DatabaseError)
    if not is_outage(error):
        raise error
    return await _on_database_down(_, error)


async def _on_database_down(_: Request, error: Exception) -> Response:
    log.error("database error: %s", error)
    detail = "The database is not available. Nothing of this request was stored; retry after 5 s."
    return Problem(503, detail, retry_after=5).response()


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
    app.add_exception_handler(TimeoutError, _on_database_down)  # no database connection became free
