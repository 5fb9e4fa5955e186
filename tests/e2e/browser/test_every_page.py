"""What holds on every page: it obeys the keyboard and the theme, moves nothing, leaks nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from helpers.batches import batch, step
from helpers.service import Service, running_service

PAGES = ("/", "/runs/r1", "/runs/r1/steps/0/1")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service with one run of two ranks for all tests here: they only look."""
    with running_service(tmp_path_factory.mktemp("pages") / "gradledger.db") as running:
        for rank in (0, 1):
            running.post(batch("r1", [step(1), step(2)], world_size=2, rank=rank))
        yield running


SHIFTS = """async () => {
  for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
  const observer = new PerformanceObserver(() => {});
  observer.observe({ type: "layout-shift", buffered: true });
  return observer.takeRecords().reduce((sum, { value }) => sum + value, 0);
}"""


@pytest.mark.parametrize(
    ("path", "element"),
    [
        ("/", "[data-run=r1]"),
        ("/runs/r1", "#chart-norm .plot"),
        ("/runs/r1/steps/0/1", ".plot"),
    ],
)
def test_a_page_keeps_its_layout_while_charts_are_drawn(
    page: Page, path: str, element: str
) -> None:
    page.goto(path, wait_until="load")
    page.locator(element).scroll_into_view_if_needed()
    if path != "/":
        expect(page.locator(f"{element} .main-svg").first).to_be_visible()
    assert page.evaluate(SHIFTS) < 0.02


@pytest.mark.parametrize("path", PAGES)
def test_no_inline_script_is_allowed(service: Service, path: str) -> None:
    policy = service.get(f"/../..{path}").headers["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy


def test_a_chosen_theme_applies_to_every_page(page: Page) -> None:
    page.goto("/")
    toggle = page.locator("#theme")
    toggle.click()
    expect(toggle).to_have_text("Light")
    toggle.click()
    expect(toggle).to_have_text("Dark")
    page.goto("/runs/r1")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("body")).to_have_css("background-color", "rgb(15, 18, 23)")


def test_a_term_is_explained_in_place_by_the_keyboard(page: Page) -> None:
    page.goto("/runs/r1")
    page.locator("#chart-balance .term").press("Enter")
    expect(page.locator("#word-balance")).to_be_visible()
    expect(page.locator("#word-balance")).to_contain_text("exactly 1")
    page.keyboard.press("Escape")
    expect(page.locator("#word-balance")).to_be_hidden()


def test_assets_are_cached_for_ever_and_compressed(service: Service, page: Page) -> None:
    page.goto("/")
    address = page.locator("link[rel=stylesheet]").get_attribute("href")
    headers = service.get(f"/../..{address}").headers
    assert "immutable" in headers["Cache-Control"]
    assert headers["Content-Encoding"] == "gzip"
