"""What browser tests read from the charts of a page, and do with them."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Error, Page

from helpers.batches import eventually
from helpers.patience import HANGS

_POINTS = 'Number(document.querySelector("#charts").dataset.points ?? 0)'
_DRAWN = '[...document.querySelectorAll(".charts .plot")].filter((plot) => plot.layout)'
_RANGES = f"{_DRAWN}.map((plot) => plot.layout.xaxis.range)"
_ONE = 'document.querySelector("#chart-norm .plot").layout.xaxis.range'


def until(page: Page, expression: str, expected: Any) -> None:
    """Wait for a value; playwright's own wait_for_function needs eval, which our policy forbids."""

    def reached() -> bool:
        try:
            return bool(page.evaluate(expression) == expected)
        except Error:  # while another page is loaded, which has no such elements yet
            return False

    assert eventually(HANGS, reached), (
        f"{expression} is {page.evaluate(expression)}, not {expected}"
    )


def points(page: Page, number: int) -> None:
    """Wait until the page has exactly this many points of the whole run."""
    until(page, _POINTS, number)


def press(page: Page) -> tuple[float, float, float]:
    """Drag from the first quarter of a chart to its middle; its left edge, width and height."""
    plot = page.locator("#chart-norm .nsewdrag")
    page.locator("#chart-norm").scroll_into_view_if_needed()  # a chart in sight is drawn
    plot.hover()  # from here on, updates leave the chart under the pointer
    box = plot.bounding_box()
    assert box is not None
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 4, height)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, height, steps=4)
    return box["x"], box["width"], height


def release(page: Page, pressed: tuple[float, float, float]) -> list[float]:
    """Go on to the third quarter; the range that the chart shows then."""
    left, width, height = pressed
    page.mouse.move(left + width * 3 / 4, height, steps=4)
    page.mouse.up()
    until(page, f"{_ONE}[0] > 1", True)
    shown: list[float] = page.evaluate(_ONE)
    return shown


def zoom(page: Page) -> list[float]:
    """Drag over the middle half of one chart; the range that it shows then."""
    return release(page, press(page))


def zoomed(page: Page, shown: list[float]) -> None:
    """Wait until every chart that was drawn shows this range: at least those in sight."""
    number = page.evaluate(f"{_DRAWN}.length")
    assert number >= 2
    until(page, _RANGES, [shown] * number)


def shows_all(page: Page, last: int) -> None:
    """Wait until every chart shows the run from its first step to its last."""
    until(page, f"{_RANGES}.every(([from, to]) => from <= 1 && to >= {last})", True)


def open_run(page: Page, run: str, number: int) -> None:
    """Go to a run and wait for the points of its charts."""
    page.goto(f"/runs/{run}")
    page.wait_for_selector("#charts[data-ready]")
    points(page, number)


def stop(page: Page) -> None:
    """From now on, the run's last record is from long ago: also after an update of the page."""
    age = "document.querySelector('#verdict .seen').dataset.seen = '1'"
    page.evaluate(f"() => {{ {age}; setInterval(() => {{ {age}; }}, 50); }}")
