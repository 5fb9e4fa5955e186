"""Writes the table of scopes in ``docs/security.md`` from the routes.

python -m gradledger_monitor.api.scopes docs/security.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from fastapi.routing import APIRoute

from gradledger_monitor.api.middleware.access import required_scope
from gradledger_monitor.api.openapi import OPENAPI
from gradledger_monitor.api.routers import PAGES, ROUTES

BEGIN, END = "<!-- scopes: begin -->", "<!-- scopes: end -->"
NO_SCOPE = "none"


def rows() -> list[tuple[str, str, str]]:
    """Method, path and scope of every route."""
    return sorted(_rows(), key=lambda row: (row[1], row[0]))


def _rows() -> Iterator[tuple[str, str, str]]:
    yield "GET", OPENAPI, required_scope("GET", OPENAPI) or NO_SCOPE
    for module in (*ROUTES, *PAGES):
        for route in module.router.routes:
            assert isinstance(route, APIRoute)
            for method in route.methods or ():
                yield method, route.path, required_scope(method, route.path) or NO_SCOPE


def table() -> str:
    """The table, as Markdown."""
    head = "| method | path | scope |\n|---|---|---|\n"
    return head + "".join(f"| {method} | `{path}` | {scope} |\n" for method, path, scope in rows())


def with_table(page: str) -> str:
    """The page with the table between its two marks. Raises ValueError without the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page has no lines {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_table(file.read_text(encoding="utf-8")), encoding="utf-8")
