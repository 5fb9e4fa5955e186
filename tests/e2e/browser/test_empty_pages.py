"""Pages of a service that nothing was sent to: each has what to do next, and nothing is broken."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from helpers.axe import violations_anywhere


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", "gradledger run"),
        ("/findings", "gradledger run"),
        ("/alerts", "Add a channel"),
        ("/settings/tokens", "Tokens"),
        ("/rules", "reduction.token_weights_unequal"),
    ],
)
def test_an_empty_page_has_the_next_step(page: Page, path: str, text: str) -> None:
    page.goto(path)
    expect(page.locator("main")).to_contain_text(text)
    assert violations_anywhere(page) == []
