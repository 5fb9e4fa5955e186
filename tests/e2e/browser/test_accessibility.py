"""Every page, in both themes, breaks no rule of WCAG 2.2 AA that axe-core can check."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from gradledger.records import MicroBatch, StepRecord
from gradledger_monitor.alerts.assembly import LINK_KEY
from gradledger_monitor.alerts.links import Links
from gradledger_monitor.store.alerts import channels
from gradledger_monitor.store.database import Store
from helpers.axe import OF_COLOURS, violations, violations_anywhere
from helpers.batches import batch, eventually
from helpers.patience import HANGS
from helpers.seeded import judged, seed
from helpers.service import Service, running_service

RULE = "reduction.token_weights_unequal"
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
    "/runs/hidden",
    "/settings/rules",
    "/settings/retention",
    "/settings/tokens",
    "/settings/service",
    "/settings?search=keep",
    "/settings?search=nothing-like-this",
    "/findings?search=nothing-like-this",
    "/login",
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service with runs that show everything; the tests here only look."""
    with running_service(tmp_path_factory.mktemp("seeded") / "gradledger.db") as running:
        seed(running)
        unseen = MicroBatch(loss=1.0, missing={"terms": "the loss is inside torch.compile"})
        steps = [StepRecord(0, n, 1_000.0 + n, [unseen]) for n in range(1, 41)]
        running.post(batch("hidden", steps, name="an incomplete verdict"))
        for run, last in (("wrong", 60), ("right", 60), ("half", 60), ("hidden", 40)):
            assert eventually(HANGS, judged(running, run, last))
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


@pytest.mark.parametrize("button", ["Note", "Delete"])
def test_axe_finds_nothing_in_the_form_for_a_note_nor_in_that_for_a_deletion(
    page: Page, button: str
) -> None:
    page.goto("/runs/right")
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.locator("form[action^='/notes'], form[action^='/deletion']").first).to_be_visible()
    assert violations_anywhere(page) == []


def test_axe_finds_nothing_in_the_form_behind_a_link_in_a_message(
    page: Page, service: Service
) -> None:
    store = Store(service.database)
    link = Links("", channels.key(store, LINK_KEY), 1.0).create("wrong", RULE)
    store.close()
    page.goto(link)
    expect(page.get_by_role("button", name="Snooze")).to_be_visible()
    assert violations_anywhere(page) == []


def test_axe_finds_nothing_in_a_post_mortem(page: Page, service: Service) -> None:
    page.set_content(service.get("/../../runs/wrong/postmortem").text)
    expect(page.locator("#timeline")).to_be_visible()
    assert violations_anywhere(page) == []


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
