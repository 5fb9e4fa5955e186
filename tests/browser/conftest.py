"""A real browser, a real service, and pages that may not complain."""

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
PATIENCE_MS = 20_000  # on a busy machine; what holds sooner is seen sooner
expect.set_options(timeout=PATIENCE_MS)

_TELL_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


def find_browser() -> str:
    """The browser of this machine; playwright's own need not be downloaded."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.fail(
            f"None of {', '.join(BROWSERS)} is on the path. Install one, e.g. apt install chromium."
        )
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a file's tests, each with a context of its own.

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
    """A page on the service; what it complains of, or asks of others, fails the test."""
    context = browser.new_context(base_url=service.url, viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    made = context.new_page()
    made.set_default_timeout(4 * PATIENCE_MS)
    complaints: list[str] = []
    made.add_init_script(_TELL_VIOLATIONS)
    made.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.on("request", lambda r: None if _ours(r.url, service) else complaints.append(r.url))
    made.on("dialog", lambda dialog: _refuse(dialog, complaints))
    yield made
    context.close()
    assert complaints == []


def _ours(url: str, service: Service) -> bool:
    return url.startswith((service.url + "/", "data:"))


def _refuse(dialog: Dialog, complaints: list[str]) -> None:
    complaints.append(f"a dialog said {dialog.message}")
    dialog.dismiss()
