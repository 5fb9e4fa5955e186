"""A real browser, a real service, and pages without errors."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, ViewportSize, expect, sync_playwright

from helpers.service import Service, running_service

# The first is the same browser without windows: a page takes three quarters of the CPU time.
BROWSERS = (
    *("chromium-headless-shell", "chromium", "chromium-browser"),
    *("google-chrome", "google-chrome-stable"),
)
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-gpu-compositing",  # with the next two, a page takes four fifths of the CPU time
    "--disable-gpu-rasterization",
    "--num-raster-threads=1",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE_MS = 60_000  # ends what hangs, also on a busy machine
expect.set_options(timeout=PATIENCE_MS)
WINDOW: ViewportSize = {"width": 1280, "height": 900}

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


@pytest.fixture(scope="session")
def chromium() -> Iterator[tuple[Browser, asyncio.AbstractEventLoop]]:
    """One browser for all tests of this process, and the event loop of Playwright."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=find_browser(), args=QUIET)
        loop = asyncio.get_running_loop()
        yield launched, loop
        asyncio._set_running_loop(loop)
        launched.close()


@pytest.fixture(scope="module")
def browser(chromium: tuple[Browser, asyncio.AbstractEventLoop]) -> Iterator[Browser]:
    """The browser, for a file's tests.

    Playwright's event loop runs in this thread all the time. It is hidden from the tests of other
    files, which run their own.
    """
    browser, loop = chromium
    asyncio._set_running_loop(loop)
    yield browser
    asyncio._set_running_loop(None)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for a file's tests, with an empty database. Each test sends runs of its own."""
    with running_service(tmp_path_factory.mktemp("service") / "gradledger.db") as running:
        yield running


@pytest.fixture(scope="module")
def tab(browser: Browser, service: Service) -> Iterator[Page]:
    """One page for a file's tests: it compiles plotly.js once."""
    context = browser.new_context(base_url=service.url)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.add_init_script(_LOG_VIOLATIONS)
    page = context.new_page()
    page.set_default_timeout(4 * PATIENCE_MS)
    yield page
    context.close()


@pytest.fixture
def errors() -> Iterator[list[str]]:
    """Errors, dialogs and requests to other hosts of the page. Any that is left fails the test."""
    errors: list[str] = []
    yield errors
    assert errors == []


@pytest.fixture
def page(tab: Page, service: Service, errors: list[str]) -> Iterator[Page]:
    """A page on the service, as new: without cookies and stored settings."""
    listeners: dict[Any, Callable[[Any], None]] = {
        "console": lambda m: errors.append(m.text) if m.type == "error" else None,
        "pageerror": lambda error: errors.append(str(error)),
        "request": lambda r: None if _is_local(r.url, service) else errors.append(r.url),
        "dialog": lambda dialog: _dismiss(dialog, errors),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)
    tab.set_viewport_size(WINDOW)
    tab.emulate_media(media="null", color_scheme="null")
    tab.mouse.move(0, 0)
    yield tab
    tab.evaluate("location.protocol === 'about:' || localStorage.clear()")
    tab.goto("about:blank")
    tab.context.clear_cookies()
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)


def _is_local(url: str, service: Service) -> bool:
    return url.startswith((service.url + "/", "data:", "about:"))


def _dismiss(dialog: Dialog, errors: list[str]) -> None:
    errors.append(f"a dialog opened: {dialog.message}")
    dialog.dismiss()
