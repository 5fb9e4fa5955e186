"""What axe-core has against a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

SCRIPT = Path(__file__).parents[1] / "e2e" / "browser" / "vendor" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
OF_COLOURS = ["color-contrast", "link-in-text-block"]  # what another theme may break


def violations(page: Page, *only: str) -> list[str]:
    """The rules of WCAG 2.2 AA that it breaks, or of those only, with the elements."""
    page.evaluate(f"{SCRIPT.read_text(encoding='utf-8')}\n;0")
    options = {"runOnly": {"type": "rule" if only else "tag", "values": only or RULES}}
    found: Any = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{each['id']}: {each['help']}: {node['html']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


def violations_anywhere(page: Page) -> list[str]:
    """Those in either theme, and what makes a phone scroll sideways."""
    page.emulate_media(color_scheme="light")
    broken = violations(page)
    page.emulate_media(color_scheme="dark")
    broken += violations(page, *OF_COLOURS)
    page.set_viewport_size({"width": 390, "height": 844})
    width = page.evaluate("document.documentElement.scrollWidth")
    return broken if width <= 390 else [*broken, f"{width} px wide on a phone of 390 px"]
