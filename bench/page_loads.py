"""Requests, bytes and first paint of each page, in a browser, with real trainings in the service.

The first load of a page has an empty cache; the next ones are of a reader who was there before.
Bytes are those on the wire, headers included. The first paint is First Contentful Paint
(https://www.w3.org/TR/paint-timing/), with the service on the same machine, which paints by itself:
without a graphics card it is slower than that of a reader.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from playwright.sync_api import Browser, Page, sync_playwright
from report import Measure, Report, arguments, median_of, publish

from e2e.browser.conftest import QUIET, find_browser
from gallery import states, take

PAGES = (
    *("runs", "run-byte-lm", "run-long", "run-wide", "step", "compare", "findings"),
    *("rules", "rule", "alerts", "settings"),
)
GOAL_MS = 300.0
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
FIRST_BYTE = "performance.getEntriesByType('navigation')[0].responseStart"


@dataclass
class Load:
    """What one load of a page took."""

    paint_ms: float
    first_byte_ms: float
    requests: int
    bytes: float


@dataclass
class Traffic:
    """Counts what a browser receives."""

    requests: int = 0
    bytes: float = 0.0

    def follow(self, page: Page) -> None:
        """Count what this page receives from now on; live updates end with the page only."""
        network = page.context.new_cdp_session(page)
        network.send("Network.enable")
        network.on("Network.responseReceived", self._response)
        network.on("Network.loadingFinished", self._finished)

    def _response(self, event: dict[str, Any]) -> None:
        response = event["response"]
        if event["type"] != "EventSource" and not response.get("fromDiskCache"):
            self.requests += 1

    def _finished(self, event: dict[str, Any]) -> None:
        self.bytes += event["encodedDataLength"]


def load(page: Page, path: str) -> Load:
    """Load a page, with its charts."""
    traffic = Traffic()
    traffic.follow(page)
    page.goto(path, wait_until="load")
    if page.locator("#charts").count():
        page.wait_for_selector("#charts[data-ready]", timeout=60_000)
    page.wait_for_timeout(200)
    first_byte = page.evaluate(FIRST_BYTE)
    return Load(page.evaluate(PAINT), first_byte, traffic.requests, traffic.bytes)


def measured(browser: Browser, url: str, name: str, path: str, rounds: int) -> list[Measure]:
    """The first load of a page, and the next ones."""
    first: list[Load] = []
    again: list[Load] = []
    for _ in range(rounds):
        context = browser.new_context(base_url=url, viewport={"width": 1440, "height": 900})
        for loads in (first, again):
            page = context.new_page()
            loads.append(load(page, path))
            page.close()
        context.close()
    measures = [
        median_of(f"{name}: first paint", [x.paint_ms for x in first], "ms", under=GOAL_MS),
        median_of(f"{name}: first byte", [x.first_byte_ms for x in first], "ms"),
    ]
    for title, loads in (("first load", first), ("next load", again)):
        measures += [
            Measure(f"{name}: requests, {title}", loads[-1].requests, ""),
            Measure(f"{name}: bytes, {title}", loads[-1].bytes / 1000, "kB"),
        ]
    return measures


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report = Report("Pages in a browser", "python bench/page_loads.py")
    with tempfile.TemporaryDirectory() as folder, states.everything(Path(folder)) as service:
        paths = take.pages("full", service)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=find_browser(), args=QUIET)
            for name in PAGES:
                report.measures += measured(browser, service.url, name, paths[name], options.rounds)
            browser.close()
    report.notes.append(
        "The runs are those of `make gallery`: `run-long` has 30,000 steps, `run-wide` 1,024 "
        "ranks. Live updates, one connection for each open page, are not counted as a request. "
        "Until the first byte the service renders the page, and then the browser paints what it "
        "has of it: where a first paint misses the goal, these two rows show in which of them "
        "the time goes."
    )
    publish(report, options.json)


if __name__ == "__main__":
    main()
