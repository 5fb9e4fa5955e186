"""Takes pictures of every page in every state: both themes, a desk and a phone.

    python -m gallery.take FOLDER [--only WORD] [--states full] [--themes light] [--widths 1440]

A picture is named ``STATE.PAGE.THEME.WIDTH.png`` and shows the whole page.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from e2e.browser.conftest import QUIET, find_browser
from gallery import states
from gradledger_monitor.alerts.assembly import LINK_KEY
from gradledger_monitor.alerts.links import Links
from gradledger_monitor.store.alerts import channels
from gradledger_monitor.store.database import Store
from helpers.batches import batch, fair_step
from helpers.service import Service

State = Callable[[Path], AbstractContextManager[Service]]

STATES: dict[str, State] = {
    "empty": states.empty,
    "one": states.one_run,
    "many": states.many_runs,
    "full": states.everything,
}
EMPTY_PAGES = {
    "runs": "/",
    "findings": "/findings",
    "rules": "/rules",
    "alerts": "/alerts",
    "settings": "/settings",
    "docs": "/docs",
    "login": "/login",
    "missing": "/runs/nobody",
}
RUNS = {  # name of the page: name of the run
    "wrong": "wrong",
    "right": "right",
    "half": "half",
    "byte-lm": "byte-lm",
    "diverged": "diverged",
    "layers": "deep-sigmoid",
    "scaler": "fp16-scaler",
    "four-ranks": "four-ranks",
    "incomplete": "compiled loss",
    "long": "long pretraining",
    "wide": "1,024 ranks",
    "imported": "trainer",
    "attempts": "restarted",
    "live": "live",
}
BUTTONS = {"note": "Note", "deletion": "Delete"}  # to the pages that only a form leads to
# A picture beyond the viewport leaves out what is painted only when it is scrolled into view.
PAINTED = (
    "document.getElementById('layer-maps')?.style.setProperty('content-visibility', 'visible')"
)
HEIGHTS = {1440: 900, 390: 844}
Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")


def pages(state: str, service: Service) -> dict[str, str]:
    """The pages of a state by name."""
    if state == "empty":
        return EMPTY_PAGES
    if state == "one":
        return {
            "runs": "/",
            "run": "/runs/only",
            "step": "/runs/only/steps/0/7",
            "findings": "/findings",
        }
    if state == "many":
        return {
            "runs": "/",
            "grouped": "/?group=name",
            "findings": "/findings",
            "search": "/?search=sweep-12&verdict=broken",
        }
    ids = {run["name"]: run["id"] for run in service.get("/runs?limit=100").json()["runs"]}
    runs = {f"run-{page}": f"/runs/{ids[name]}" for page, name in RUNS.items() if name in ids}
    lm, corrected = ids["byte-lm"], ids["byte-lm-corrected"]
    return {
        "runs": "/",
        **runs,
        "step": f"/runs/{lm}/steps/0/7",
        "step-scaler": "/runs/half/steps/0/31",
        "step-wide": "/runs/wide/steps/0/2",
        "compare": f"/compare?run={lm}&run={corrected}",
        "compare-three": "/compare?run=wrong&run=right&run=half",
        "findings": "/findings",
        "rules": "/rules",
        "rule": "/rules/reduction.token_weights_unequal",
        "alerts": "/alerts",
        "settings": "/settings",
        "settings-rules": "/settings/rules",
        "settings-retention": "/settings/retention",
        "settings-tokens": "/settings/tokens",
        "settings-service": "/settings/service",
        "settings-search": "/settings?search=keep",
        "docs": "/docs",
        "note": f"/runs/{lm}",
        "deletion": f"/runs/{lm}",
        "message": f"/alerts/messages/{_message(service)}",
        "answer": _answer(service, lm),
        "postmortem": f"/runs/{lm}/postmortem",
        "problem": "/findings?assignee=" + 300 * "x",
    }


def _message(service: Service) -> str:
    return str(service.get("/alerts?limit=1").json()["alerts"][0]["id"])


def _answer(service: Service, run: str) -> str:
    """The path of the form behind a link in a message about the first finding of a run."""
    rule = service.get(f"/runs/{run}/verdict").json()["findings"][0]["rule"]
    store = Store(service.database)
    link = Links("", channels.key(store, LINK_KEY), days=1.0).create(run, rule)
    store.close()
    return link


def take(page: Page, path: str, target: Path) -> None:
    """One picture of a whole page, with its charts."""
    if path.endswith("/postmortem"):  # a download
        text = page.request.get(path).text()
        page.goto("about:blank")  # else the Content-Security-Policy of the page before applies
        page.set_content(text)
    else:
        page.goto(path, wait_until="load")
    if button := BUTTONS.get(target.name.split(".")[1]):
        page.get_by_role("button", name=button, exact=True).click()
        page.wait_for_load_state()
    if page.locator("#charts .plot").count():
        page.wait_for_selector("#charts[data-ready]", timeout=60_000)
    height = page.evaluate("document.documentElement.scrollHeight")
    for top in range(0, height, 800):
        page.evaluate(f"scrollTo(0, {top})")
        page.wait_for_timeout(60)
    page.evaluate("scrollTo(0, 0)")
    page.evaluate(PAINTED)
    page.wait_for_timeout(250)
    page.screenshot(path=target, full_page=True)


def opened(browser: Browser, service: Service, width: int, theme: Theme) -> Page:
    """A page of a width, in a theme."""
    viewport = ViewportSize(width=width, height=HEIGHTS.get(width, 900))
    return browser.new_page(base_url=service.url, viewport=viewport, color_scheme=theme)


def sending(service: Service, stop: threading.Event) -> None:
    """Send the steps of a live run until ``stop`` is set."""
    number, start = 0, time.time()
    while not stop.wait(0.25):
        number += 1
        record = fair_step(number, tokens=(12, 40, 25, 31))
        record.time = time.time()
        for index, micro_batch in enumerate(record.micro_batches):
            micro_batch.loss = (1.2 + 3 / (1 + number / 12)) * (1 + index % 2 / 30) / 4
        record.norm = 0.6 + number % 5 / 20
        fields = {
            "name": "live",
            "project": "demo",
            "started": start,
            "config": {"planned_steps": 400},
        }
        service.post(batch("live", [record], **fields))


def pictures(
    browser: Browser,
    state: str,
    service: Service,
    only: str,
    themes: list[Theme],
    widths: list[int],
) -> Iterator[tuple[Page, str, str]]:
    """The pages to take, with the names of their pictures."""
    for theme in themes:
        for width in widths:
            page = opened(browser, service, width, theme)
            for name, path in pages(state, service).items():
                if only in f"{state}.{name}":
                    yield page, path, f"{state}.{name}.{theme}.{width}.png"
            page.context.close()


def main() -> None:
    """Start each state, and take its pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--states", nargs="+", default=list(STATES))
    parser.add_argument("--themes", nargs="+", default=list(THEMES))
    parser.add_argument("--widths", nargs="+", type=int, default=list(HEIGHTS))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=QUIET)
        for state in options.states:
            with STATES[state](Path(folder)) as service:
                stop = threading.Event()
                sender = threading.Thread(target=sending, args=(service, stop))
                if state == "full":
                    sender.start()
                    stop.wait(5)
                try:
                    for page, path, name in pictures(
                        browser, state, service, options.only, options.themes, options.widths
                    ):
                        take(page, path, options.folder / name)
                finally:
                    stop.set()
        browser.close()


if __name__ == "__main__":
    main()
