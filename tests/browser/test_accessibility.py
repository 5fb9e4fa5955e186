"""Every page, in both themes, breaks no rule of WCAG 2.2 AA that axe-core can check."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from helpers.axe import OF_COLOURS, violations
from helpers.batches import eventually
from helpers.patience import HANGS
from helpers.seeded import judged, seed
from helpers.service import Service, running_service

PAGES = (
    "/",
    "/?group=name",
    "/runs/wrong",
    "/runs/half",
    "/runs/wrong/steps/0/7",
    "/compare?run=wrong&run=right&run=half",
    "/findings",
    "/rules",
    "/rules/reduction.token_weights_unequal",
    "/alerts",
    "/docs",
    "/settings",
    "/settings/tokens",
    "/settings?search=keep",
    "/login",
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service with runs that show everything; the tests here only look."""
    with running_service(tmp_path_factory.mktemp("seeded") / "gradledger.db") as running:
        seed(running)
        for run in ("wrong", "right", "half"):
            assert eventually(HANGS, judged(running, run))
        yield running


def opened(page: Page, path: str) -> None:
    """Go to a page, wait for its charts, and open all details."""
    page.goto(path, wait_until="load")
    if page.locator("#charts").count():
        expect(page.locator("#charts[data-ready]")).to_be_visible()
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")


@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing_in_either_theme_and_a_full_page_fits_a_phone(
    page: Page, path: str
) -> None:
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 390, "height": 844})
    opened(page, path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 900})
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page, *OF_COLOURS) == []


def test_axe_finds_nothing_where_there_is_no_page(page: Page, errors: list[str]) -> None:
    page.goto("/runs/nobody")
    assert violations(page) == []
    assert eventually(HANGS, lambda: bool(errors))
    (error,) = errors
    assert "a status of 404" in error
    errors.clear()


def test_on_paper_there_are_no_buttons_and_nothing_is_folded_away(page: Page) -> None:
    opened(page, "/runs/wrong")
    page.emulate_media(media="print")
    expect(page.locator("#reset-zoom")).to_be_hidden()
    expect(page.locator(".copy").first).to_be_hidden()
    expect(page.locator(".finding h3").first).to_be_visible()


WIDEST = (
    "() => Math.max(...[...document.querySelectorAll('.main-svg')].map((it) => it.clientWidth))"
)


def test_charts_fit_a_sheet_and_the_window_again(page: Page) -> None:
    page.set_viewport_size({"width": 1000, "height": 900})  # one chart beside none
    opened(page, "/runs/wrong")
    page.locator("#charts").scroll_into_view_if_needed()
    page.wait_for_selector(".chart .main-svg")
    before = page.evaluate(WIDEST)
    assert before > 680
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert eventually(HANGS, lambda: bool(page.evaluate(WIDEST) <= 680))
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert eventually(HANGS, lambda: bool(page.evaluate(WIDEST) == before))
