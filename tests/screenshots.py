"""Takes the README's pictures: two real trainings of the demo's model, and the pages they lead to.

python tests/screenshots.py docs/images
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from e2e.browser.conftest import QUIET, find_browser
from helpers.batches import eventually
from helpers.service import Service, running_service

STEPS = 60
LARGEST = 150_000  # bytes of one picture
LOOPS = {"mean-of-means": "byte-lm", "token-mean": "byte-lm corrected"}
WIDE, PHONE = (1120, 700), (390, 844)


def train(service: Service, loop: str, name: str) -> None:
    """Train under ``gradledger run`` until all steps are judged."""
    script = [sys.executable, "-m", "gradledger_monitor.demo.byte_lm"]
    told = ["--url", service.url, "--name", name, "--project", "demo"]
    run = [sys.executable, "-m", "gradledger.cli", "run", *told, "--"]
    command = [*run, *script, "--accumulate", loop, "--steps", str(STEPS)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert eventually(120, lambda: run_of(service, name).get("steps") == STEPS)


def run_of(service: Service, name: str) -> dict[str, object]:
    """What is known of a run, by its name."""
    runs = service.get("/runs").json()["runs"]
    return next((run for run in runs if run["name"] == name), {})


def take(page: Page, path: str, target: Path, place: str = "") -> None:
    """One picture, of what is seen without scrolling, or from an element on."""
    page.goto(path)
    if page.locator("#charts").count():
        page.wait_for_selector("#charts[data-ready]")
    if place:
        page.locator(place).evaluate("(element) => element.scrollIntoView()")
    page.wait_for_timeout(1_500)
    page.screenshot(path=target)
    size = target.stat().st_size
    assert size < LARGEST, f"{target} has {size} bytes"


def opened(
    browser: Browser, service: Service, size: tuple[int, int], theme: Literal["light", "dark"]
) -> Page:
    """A page of a size, in a theme."""
    viewport = ViewportSize(width=size[0], height=size[1])
    return browser.new_page(base_url=service.url, viewport=viewport, color_scheme=theme)


def main(folder: Path) -> None:
    """Train, look, take the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as place,
        sync_playwright() as playwright,
        running_service(Path(place) / "gradledger.db") as service,
    ):
        for loop, name in LOOPS.items():
            train(service, loop, name)
        wrong, right = (str(run_of(service, name)["id"]) for name in LOOPS.values())
        browser = playwright.chromium.launch(executable_path=find_browser(), args=QUIET)
        page = opened(browser, service, WIDE, "light")
        take(page, f"/runs/{wrong}", folder / "run.png")
        take(page, f"/runs/{wrong}/steps/0/7", folder / "step.png")
        take(page, f"/compare?run={wrong}&run={right}", folder / "compare.png")
        dark = opened(browser, service, WIDE, "dark")
        take(dark, f"/runs/{wrong}", folder / "charts-dark.png", "#charts")
        take(opened(browser, service, PHONE, "light"), f"/runs/{wrong}", folder / "phone.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
