"""The table of scopes in the documentation matches the routes."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from fastapi import APIRouter

from gradledger_monitor.api import pages, routes
from gradledger_monitor.api.routers import PAGES, ROUTES
from gradledger_monitor.api.scopes import NO_SCOPE, rows, with_table

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def test_the_documentation_has_the_scope_of_every_route() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_table(text), "python -m gradledger_monitor.api.scopes docs/security.md"


def test_every_module_with_routes_is_in_the_table() -> None:
    modules = [
        importlib.import_module(module.name)
        for package in (routes, pages)
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    ]
    with_routes = {m for m in modules if isinstance(getattr(m, "router", None), APIRouter)}
    assert with_routes == {*ROUTES, *PAGES}


def test_only_these_routes_need_no_token() -> None:
    assert {path for _, path, scope in rows() if scope == NO_SCOPE} == {
        *("/healthz", "/readyz", "/login", "/logout"),
        *("/static/{version}/{name}", "/alerts/answer/{link}"),
    }


def test_routes_that_change_something_need_admin() -> None:
    for method, path, scope in rows():
        if method != "GET" and scope not in (NO_SCOPE, "ingest"):
            assert scope == "admin", path
