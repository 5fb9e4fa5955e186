"""The inbox of findings: filters, search, acknowledgement and snooze."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from helpers.batches import batch, eventually, step
from helpers.patience import HANGS
from helpers.seeded import judged, seed
from helpers.service import Service, running_service

RULE, OTHER = "reduction.token_weights_unequal", "scaler.skipped_steps"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with one rule in two runs, and other rules in another one."""
    with running_service(tmp_path_factory.mktemp("inbox") / "gradledger.db") as running:
        seed(running)
        running.post(batch("again", [step(n) for n in (1, 2, 3)], name="again", project="other"))
        for run, last in (("wrong", 60), ("half", 60), ("again", 3)):
            assert eventually(HANGS, judged(running, run, last))
        yield running


def finding(page: Page, rule: str = RULE) -> Locator:
    return page.locator(f'[id="rule-{rule}"]')


def answer(page: Page, note: str, period: str) -> None:
    """Acknowledge the finding in all its runs, or snooze it for a period."""
    finding(page).get_by_text("Acknowledge or snooze in 2 runs").click()
    finding(page).get_by_label("Note").fill(note)
    finding(page).get_by_label("Your name").nth(-1).fill("Ada")
    finding(page).get_by_label("For").select_option(period)
    finding(page).get_by_role("button", name="Acknowledge").click()


def test_an_acknowledged_finding_is_filtered_and_opened_again(page: Page) -> None:
    page.goto("/findings")
    answer(page, "an intended weighting", "until it is resolved")
    expect(finding(page)).to_contain_text("acknowledged")
    page.get_by_label("Any state").select_option("open")  # sends the form
    expect(finding(page, OTHER)).to_be_visible()
    expect(finding(page)).to_have_count(0)
    page.get_by_label("Any state").select_option("acknowledged")
    expect(finding(page, OTHER)).to_have_count(0)
    finding(page).get_by_role("button", name="Undo").click()
    expect(finding(page)).to_contain_text("Acknowledge or snooze in 2 runs")


def test_a_snooze_ends_when_it_is_withdrawn(page: Page) -> None:
    page.goto("/findings")
    answer(page, "the next run has the fix", "1 day")
    for run in ("wrong", "again"):
        page.goto(f"/runs/{run}")
        card = page.locator(f'[data-rule="{RULE}"]')
        expect(card.locator("header")).to_contain_text("snoozed")
        expect(card).to_contain_text("Snoozed by Ada")
        expect(card).to_contain_text("the next run has the fix")
    page.goto("/findings")
    finding(page).get_by_role("button", name="Undo").click()
    expect(finding(page)).to_contain_text("Acknowledge or snooze in 2 runs")
    page.goto("/runs/again")
    expect(page.locator(f'[data-rule="{RULE}"] header')).not_to_contain_text("snoozed")


def test_severities_and_a_search_filter_the_findings(page: Page) -> None:
    page.goto("/findings")
    page.get_by_role("navigation", name="Severities").get_by_role("link", name="Error").click()
    expect(finding(page)).to_be_visible()
    expect(page.locator("#inbox article:not(.is-error)")).to_have_count(0)
    page.keyboard.press("/")
    page.keyboard.type("again")
    page.keyboard.press("Enter")
    expect(page).to_have_url("/findings?search=again&state=&severity=error")
    expect(page.locator("#inbox article")).to_have_count(1)
    page.get_by_role("searchbox").fill("nothing like this")
    page.keyboard.press("Enter")
    expect(page.locator("#inbox")).to_contain_text("No finding matches")
    page.get_by_role("link", name="Show all findings").click()
    expect(finding(page, OTHER)).to_be_visible()
