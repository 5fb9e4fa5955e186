"""Nothing on a page covers something else or is cut off, on a desk and on a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import FloatRect, Locator, Page, expect

from helpers.batches import batch, eventually, fair_step, step
from helpers.charts import open_run
from helpers.patience import HANGS
from helpers.seeded import judged
from helpers.service import Service, running_service

DESK, PHONE = 1280, 390
TICKS = "#chart-tokens .plot :is(.xtick, .ytick, .y2tick) text:visible"

BOXES = "(all) => all.map((each) => [each.textContent, each.getBoundingClientRect().toJSON()])"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a run of unequal weights and one of equal weights."""
    with running_service(tmp_path_factory.mktemp("layout") / "gradledger.db") as running:
        unequal = [step(n, tokens=(10, 400, 10, 12)) for n in range(1, 61)]
        running.post(batch("unequal", unequal, name="a sweep with a long name, seed 1"))
        running.post(batch("equal", [fair_step(n) for n in range(1, 61)], name="equal"))
        for run in ("unequal", "equal"):
            assert eventually(HANGS, judged(running, run, 60))
        yield running


def box_of(element: Locator) -> FloatRect:
    """Where an element is on the page."""
    box = element.bounding_box()
    assert box is not None
    return box


def overlap(one: FloatRect, other: FloatRect) -> bool:
    """Whether two boxes share more than their edges."""
    wide = min(one["x"] + one["width"], other["x"] + other["width"]) - max(one["x"], other["x"])
    high = min(one["y"] + one["height"], other["y"] + other["height"]) - max(one["y"], other["y"])
    return wide > 0.5 and high > 0.5


def resized(page: Page, width: int) -> Page:
    page.set_viewport_size({"width": width, "height": 900})
    return page


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_the_labels_of_two_axes_do_not_overlap(page: Page, width: int) -> None:
    open_run(resized(page, width), "unequal", 60)
    page.locator("#chart-tokens").scroll_into_view_if_needed()
    expect(page.locator("#chart-tokens .y2tick text").first).to_be_visible()
    labels = page.locator(TICKS).evaluate_all(BOXES)  # at once: the chart may be drawn again
    assert {"0", "60"} <= {text for text, _ in labels}
    overlapping = [
        (one, other)
        for index, (one, box) in enumerate(labels)
        for other, other_box in labels[index + 1 :]
        if overlap(box, other_box)
    ]
    assert overlapping == []


def test_each_of_two_axes_has_a_title(page: Page) -> None:
    open_run(page, "unequal", 60)
    page.locator("#chart-tokens").scroll_into_view_if_needed()
    expect(page.locator("#chart-tokens .ytitle")).to_have_text("tokens")
    expect(page.locator("#chart-tokens .y2title")).to_have_text("learning rate")


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_the_copy_button_is_in_the_line_of_the_heading_above_the_code(
    page: Page, width: int
) -> None:
    resized(page, width).goto("/runs/unequal")
    snippet = page.locator(".finding .snippet").first
    button, code = box_of(snippet.locator(".copy")), box_of(snippet.locator("pre"))
    heading = box_of(page.locator(".finding h4:has(+ .snippet)").first)
    frame = box_of(snippet)
    assert not overlap(button, code)
    assert code["width"] > frame["width"] - 4  # not narrowed by the button
    assert overlap({**heading, "width": frame["width"]}, button)
    assert button["x"] + button["width"] <= frame["x"] + frame["width"] + 0.5


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_without_a_heading_the_copy_button_covers_no_code(page: Page, width: int) -> None:
    resized(page, width).goto("/login")
    snippet = page.locator(".snippet")
    assert not overlap(box_of(snippet.locator(".copy")), box_of(snippet.locator("code")))


def test_the_largest_share_is_written_above_the_bars(page: Page) -> None:
    resized(page, PHONE).goto("/runs/unequal")
    sketch = page.locator(".sketch .bars").first
    label = box_of(sketch.locator(".edge.top"))
    assert not any(overlap(label, box_of(bar)) for bar in sketch.locator("rect").all())


def test_on_a_phone_each_verdict_is_beside_the_name_of_its_run(page: Page) -> None:
    resized(page, PHONE).goto("/")
    rows = page.locator("table.runs tbody tr")
    expect(rows).to_have_count(2)
    for row in rows.all():
        name, badge = box_of(row.locator("th a")), box_of(row.locator(".badge"))
        assert badge["x"] > name["x"] + name["width"]
        assert badge["y"] < name["y"] + name["height"]


def test_on_a_phone_the_tabs_of_the_settings_are_one_line_high(page: Page) -> None:
    resized(page, PHONE).goto("/settings?search=keep")
    tabs = page.locator(".sections a")
    assert {box_of(tab)["height"] < 45 for tab in tabs.all()} == {True}


def test_on_a_phone_the_description_of_a_request_is_below_its_path(page: Page) -> None:
    resized(page, PHONE).goto("/docs")
    row = page.locator(".plain tbody tr").first
    path, description = box_of(row.locator("th")), box_of(row.locator("td").last)
    assert description["y"] >= path["y"] + path["height"] - 0.5
    assert description["x"] + description["width"] <= PHONE
