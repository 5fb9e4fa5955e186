"""The list of runs, as a browser shows it."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from helpers.batches import EndRecord, batch, fair_step, step
from helpers.service import Service


def test_each_run_shows_its_verdict_and_what_is_wrong_with_it(page: Page, service: Service) -> None:
    service.post(batch("bad", [step(1), step(2)], name="mean of means"))
    service.post(batch("good", [fair_step(1), EndRecord(2_000.0)], name="corrected"))
    page.goto("/")
    bad, good = page.locator("[data-run=bad]"), page.locator("[data-run=good]")
    expect(bad).to_contain_text("Broken")
    expect(bad).to_contain_text("Token weights differ")
    expect(good).to_contain_text("Balanced")
    expect(good).to_contain_text("ended")


def test_a_run_without_an_end_that_sends_nothing_any_more_is_lost(
    page: Page, service: Service
) -> None:
    service.post(batch("killed", [fair_step(n) for n in (1, 2, 3)], name="killed"))
    page.goto("/")
    label = page.locator("[data-run=killed] [data-lost]")
    expect(label).to_be_hidden()
    page.evaluate("""() => {
      const seen = document.querySelector("[data-run=killed] .seen");
      seen.dataset.seen = String(Number(seen.dataset.seen) - 121);
    }""")
    expect(label).to_be_visible()


def test_the_keyboard_leads_to_the_search_and_through_the_list(
    page: Page, service: Service
) -> None:
    for run in ("older", "newer"):
        service.post(batch(run, [fair_step(1)], name=run))
    page.goto("/")
    rows = page.locator("tr[data-run] th a")
    for key, row in (("j", 0), ("j", 1), ("k", 0)):
        page.keyboard.press(key)
        expect(rows.nth(row)).to_be_focused()
    page.keyboard.press("/")
    search = page.get_by_role("searchbox")
    expect(search).to_be_focused()
    page.keyboard.type("j/k")
    expect(search).to_have_value("j/k")


def test_search_filters_runs_and_reports_no_match(page: Page, service: Service) -> None:
    service.post(batch("r1", [fair_step(1)], name="llama", project="sft"))
    service.post(batch("r2", [fair_step(1)], name="resnet", project="vision"))
    page.goto("/")
    search = page.get_by_role("searchbox")
    search.fill("sft")
    search.press("Enter")
    expect(page.get_by_role("link", name="llama")).to_be_visible()
    expect(page.get_by_role("link", name="resnet")).to_have_count(0)
    page.get_by_role("searchbox").fill("nothing like it")
    page.get_by_role("searchbox").press("Enter")
    expect(page.get_by_text("No run matches")).to_be_visible()


def test_more_runs_than_fit_are_a_page_away(page: Page, service: Service) -> None:
    for number in range(51):
        service.post(batch(f"r{number}", [fair_step(1)], name=f"run {number}"))
    page.goto("/")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("link", name="run 0", exact=True)).to_be_visible()
