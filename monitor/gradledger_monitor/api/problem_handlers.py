"""Turns every error that the service knows into a problem document."""

from __future__ import annotations

import logging
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DatabaseError, TimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from gradledger_monitor.common.problems import Problem
from gradledger_monitor.ingest.bounds import LimitExceeded
from gradledger_monitor.store.failures import is_outage

log = logging.getLogger(__name__)


async def _on_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _on_too_much(_: Request, error: Exception) -> Response:
    return Problem(413, str(error)).response()


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if detail == HTTPStatus(error.status_code).phrase:  # the framework's own: say what about
        detail = f"{request.method} {request.scope['path']}: {detail.lower()}"
    headers = dict(error.headers) if error.headers else None
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers = {"Allow": ", ".join(_allowed(request))}
    return Problem(error.status_code, detail, headers).response()


def _allowed(request: Request) -> list[str]:
    """The methods that an address has. The framework names those of one route of several."""
    found = set()
    for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] == Match.FULL for route in request.app.routes):
            found.add(method)
    return sorted(found)


async def _on_invalid_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [
        {"field": ".".join(map(str, found["loc"])), "reason": found["msg"]}
        for found in error.errors()
    ]
    return Problem(422, "The request has values that are not accepted.", errors=errors).response()


async def _on_database_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, DatabaseError)
    if not is_outage(error):
        raise error
    return await _on_database_down(_, error)


async def _on_database_down(_: Request, error: Exception) -> Response:
    log.error("the database did not do its work: %s", error)
    detail = "The database cannot be used at the moment; nothing of this request was stored."
    return Problem(503, detail, retry_after=5).response()


def failure(request: str) -> Problem:
    """The answer to a request on which we failed; ``request`` is its id in the log."""
    detail = "The service failed on this request; its log says why, under this id."
    return Problem(500, detail, request_id=request)


def install(app: FastAPI) -> None:
    """Make every error of the app that we know of a problem document."""
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(LimitExceeded, _on_too_much)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(DatabaseError, _on_database_error)
    app.add_exception_handler(TimeoutError, _on_database_down)  # no connection became free
