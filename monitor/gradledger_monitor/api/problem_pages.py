"""A problem as a response: a page for a browser, a problem document for a program."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

from fastapi.responses import HTMLResponse
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from gradledger_monitor.api.middleware.credentials import logged_in
from gradledger_monitor.common.problems import Problem
from gradledger_web.rendering import render

FOR_PROGRAMS = ("/api/", "/static/", "/metrics", "/healthz", "/readyz")
ALL_RUNS = ("/", "All runs")
_TITLES = {
    401: "Not logged in",
    403: "Not allowed",
    413: "Too large",
    421: "Host not allowed",
    422: "Not accepted",
}


def respond(scope: Scope, problem: Problem) -> Response:
    """A page for a person who opens an address or sends a form; a problem document otherwise."""
    if "text/html" not in Headers(scope=scope).get("accept", ""):
        return problem.response()
    if scope["path"].startswith(FOR_PROGRAMS):
        return problem.response()
    reads = scope["method"] == "GET"
    retries = reads and "Retry-After" in problem.headers
    errors = problem.members.get("errors", ())
    page = render(
        "problem.html",
        title=_TITLES.get(problem.status, HTTPStatus(problem.status).phrase.capitalize()),
        hint=f"{problem.detail} This page reloads by itself." if retries else problem.detail,
        reasons=[f"{_field(error['field'])}: {error['reason']}." for error in errors],
        links=_links(scope, problem),
        logged_in=logged_in(),
    )
    response = HTMLResponse(page, problem.status, {"Cache-Control": "no-store", **problem.headers})
    if retries:
        response.headers["Refresh"] = problem.headers["Retry-After"]
    return response


def _field(location: str) -> str:
    """The name of a field, without the part of the request that has it."""
    part, dot, name = location.partition(".")
    return name if dot and part in ("body", "query", "path") else location


def _links(scope: Scope, problem: Problem) -> list[tuple[str, str]]:
    """What to do next: repeat what may succeed then, or go back to the form that was refused."""
    if problem.status == HTTPStatus.UNAUTHORIZED:
        return [("/login", "Log in")]
    if scope["method"] != "GET":
        return [*_page_of_form(scope), ALL_RUNS]
    if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR or "Retry-After" in problem.headers:
        return [("", "Try again"), ALL_RUNS]  # the empty reference is this address
    return [ALL_RUNS]


def _page_of_form(scope: Scope) -> list[tuple[str, str]]:
    headers = Headers(scope=scope)
    page = urlsplit(headers.get("referer", ""))
    if page.netloc != headers.get("host") or not page.path.startswith("/"):
        return []
    path = "/" + page.path.lstrip("/")  # two slashes would be another host
    return [(f"{path}?{page.query}" if page.query else path, "Back to the page")]
