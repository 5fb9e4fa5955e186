"""Several objectives side by side, and the ranks of a run, as a browser shows them."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from helpers.batches import batch, eventually, fair_step, step
from helpers.charts import open_run, until
from helpers.objectives import with_router
from helpers.patience import HANGS
from helpers.seeded import judged
from helpers.service import Service

LINES = 'document.querySelector("#chart-objective-balance .plot").data'


def test_a_run_shows_each_objective_with_its_verdict_and_its_curve(
    page: Page, service: Service
) -> None:
    service.post(batch("several", [with_router(n, divided=False) for n in range(1, 9)]))
    assert eventually(HANGS, judged(service, "several", 8))
    open_run(page, "several", 8)
    rows = page.locator("#objectives tbody tr")
    expect(rows).to_have_count(2)
    expect(page.locator("#objectives")).not_to_contain_text("only earlier steps")
    expect(rows.nth(0)).to_contain_text("Cross entropy")
    expect(rows.nth(0)).to_contain_text("Balanced")
    expect(rows.nth(1)).to_contain_text("16 elements")
    rows.nth(1).get_by_role("link", name="Not divided by K = 4").click()
    expect(page.locator(".finding:target")).to_contain_text("The mean is not divided by K = 4")
    page.locator("#chart-objective-balance").scroll_into_view_if_needed()
    until(page, f"{LINES}?.map((line) => line.name ?? null).slice(0, 2)", ["cross entropy", "mean"])
    expect(page.locator("#chart-objective-balance .legend")).to_contain_text("mean 0.04")


def test_a_long_run_states_that_losses_of_earlier_steps_alone_are_not_listed(
    page: Page, service: Service
) -> None:
    service.post(batch("long", [with_router(n, divided=False) for n in range(1, 54)]))
    assert eventually(HANGS, judged(service, "long", 53))
    open_run(page, "long", 53)
    text = "Mean over 50 steps up to step 53."
    expect(page.locator("#objectives")).to_contain_text(text)
    expect(page.locator("#objectives")).to_contain_text("only earlier steps have is not listed")


def test_a_step_has_one_ledger_for_each_objective(page: Page, service: Service) -> None:
    service.post(batch("ledgers", [with_router(1, divided=False)]))
    page.goto("/runs/ledgers/steps/0/1")
    expect(page.locator(".sentence")).to_contain_text("All elements of the mean of this step")
    fair = page.locator("details.objective")
    expect(fair).to_have_count(1)
    fair.locator("summary").click()
    expect(fair.locator("tbody tr")).to_have_count(4)
    expect(page.locator("#chart-shares-2")).to_be_visible()


def test_a_run_with_one_objective_and_one_rank_has_neither_table(
    page: Page, service: Service
) -> None:
    service.post(batch("simple", [fair_step(1)]))
    assert eventually(HANGS, judged(service, "simple", 1))
    open_run(page, "simple", 1)
    for name in ("#objectives", "#ranks", "#chart-objective-balance"):
        expect(page.locator(name)).not_to_be_visible()
    page.goto("/runs/simple/steps/0/1")
    expect(page.locator("#objectives")).to_have_count(0)


def test_ranks_are_listed_with_their_tokens(page: Page, service: Service) -> None:
    for rank, tokens in enumerate([(10, 30), (10, 10)]):
        sent = step(1, tokens=tokens, sync="averaged")
        service.post(batch("parallel", [sent], rank=rank, world_size=2))
    assert eventually(HANGS, judged(service, "parallel", 1))
    open_run(page, "parallel", 1)
    page.locator(".verdict").get_by_role("link", name="2", exact=True).click()
    rows = page.locator("#ranks tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("40")
    expect(rows.nth(1)).to_contain_text("20")
