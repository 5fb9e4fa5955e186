"""The list of runs without any run, and with the first."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from helpers.batches import batch, fair_step
from helpers.service import Service


def test_after_a_command_is_copied_the_first_run_appears_without_a_reload(
    page: Page, service: Service
) -> None:
    page.goto("/")
    commands = page.locator("pre").all_inner_texts()
    assert f"gradledger run --url {service.url} -- python train.py" in commands
    assert "gradledger demo" in commands
    page.get_by_role("button", name="Copy the demo command").click()
    expect(page.get_by_text("Copied", exact=True)).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "gradledger demo"
    service.post(batch("r1", [fair_step(1)], name="first light"))
    expect(page.get_by_role("link", name="first light")).to_be_visible()
