"""A real browser, a real service, and pages without errors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

from helpers.service import Service, running_service

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE_MS = 20_000  # enough for a busy machine
expect.set_options(timeout=PATIENCE_MS)

_LOG_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


def find_browser() -> str:
    """The browser of this machine; playwright's own need not be downloaded."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.fail(
            f"None of {', '.join(BROWSERS)} is on the path. Install one, e.g. apt install chromium."
        )
    return browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a file's tests, each with its own context.

    Not for longer: Playwright keeps an event loop in this thread, where other tests start theirs.
    """
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=find_browser(), args=QUIET)
        yield launched
        launched.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with an empty database."""
    with running_service(tmp_path / "gradledger.db") as running:
        yield running


@pytest.fixture
def page(browser: Browser, service: Service) -> Iterator[Page]:
    """A page on the service. An error, a dialog, or a request to another host fails the test."""
    context = browser.new_context(base_url=service.url, viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(4 * PATIENCE_MS)
    errors: list[str] = []
    page.add_init_script(_LOG_VIOLATIONS)
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda r: None if _is_local(r.url, service) else errors.append(r.url))
    page.on("dialog", lambda dialog: _refuse(dialog, errors))
    yield page
    context.close()
    assert errors == []


def _is_local(url: str, service: Service) -> bool:
    return url.startswith((service.url + "/", "data:"))


def _refuse(dialog: Dialog, errors: list[str]) -> None:
    errors.append(f"a dialog opened: {dialog.message}")
    dialog.dismiss()
