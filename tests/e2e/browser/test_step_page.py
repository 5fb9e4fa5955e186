"""The ledger of one optimizer step, as a browser shows it."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from helpers.batches import batch, eventually, fair_step, step
from helpers.charts import open_run
from helpers.patience import HANGS
from helpers.seeded import judged
from helpers.service import Service

TIMES = "\N{MULTIPLICATION SIGN}"


def test_the_ledger_compares_share_of_gradient_with_share_of_tokens(
    page: Page, service: Service
) -> None:
    service.post(batch("unequal", [step(1, tokens=(10, 30))]))
    page.goto("/runs/unequal/steps/0/1")
    first, second = (
        page.locator(".ledger tbody tr").nth(n).inner_text().split("\t") for n in (0, 1)
    )
    assert [*first[:3], *first[4:6]] == ["1", "10", f"2{TIMES}", "25.0%", "50.0%"]
    assert [*second[:3], *second[4:6]] == ["2", "30", f"0.667{TIMES}", "75.0%", "50.0%"]
    assert first[6:10] == ["0.05", "NllLoss", "mean", "1"]
    expect(page.locator(".sentence")).to_contain_text(
        "25.0% of the tokens and 50.0% of the gradient"
    )
    expect(page.locator(".plot .bars path")).to_have_count(4)  # both shares of each micro-batch
    shares = page.evaluate('document.querySelector(".plot").data.map((bar) => bar.y)')
    assert shares == [[0.25, 0.75], [0.5, 0.5]]


def test_a_step_page_begins_with_the_findings_at_its_step(page: Page, service: Service) -> None:
    service.post(batch("found", [step(n) for n in (1, 2, 3)]))
    assert eventually(HANGS, judged(service, "found", 3))
    page.goto("/runs/found/steps/0/2")
    first = page.locator("main section").first
    expect(first).to_contain_text("Findings at this step")
    expect(first.get_by_role("link", name="Token weights differ")).to_be_visible()


def test_a_small_loss_scale_is_not_written_as_zero(page: Page, service: Service) -> None:
    record = step(1)
    for one in record.micro_batches:
        one.scale = 1.19e-07
    service.post(batch("small-scale", [record]))
    page.goto("/runs/small-scale/steps/0/1")
    expect(page.locator(".timeline")).to_contain_text("scale 1.19e-07")


def test_a_fair_step_has_equal_weights(page: Page, service: Service) -> None:
    service.post(batch("fair", [fair_step(1)]))
    page.goto("/runs/fair/steps/0/1")
    expect(page.locator(".sentence")).to_have_text("All tokens of this step have equal weight.")


def test_a_step_that_some_ranks_have_not_reported_is_called_incomplete(
    page: Page, service: Service
) -> None:
    service.post(batch("partial", [step(1)], world_size=2))
    page.goto("/runs/partial/steps/0/1")
    expect(page.get_by_text("1 of 2 ranks reported")).to_be_visible()
    expect(page.locator(".sentence")).to_contain_text(
        "25.0% of the tokens and 50.0% of the gradient"
    )


def test_a_step_of_1024_ranks_shows_equal_rows_once_and_those_that_differ_most_first(
    page: Page, service: Service
) -> None:
    ranks = 1_024
    bodies = []
    for rank in range(ranks):
        tokens = (10, 90) if rank == 700 else (40, 40)
        record = step(1, tokens=tokens, sync="averaged")
        bodies.append(batch("wide", [record], rank=rank, world_size=ranks))
    for first in range(0, ranks, 128):
        assert service.post(b"".join(bodies[first : first + 128])).is_success
    assert eventually(HANGS, judged(service, "wide", 1))
    page.goto("/runs/wide/steps/0/1")
    rows = page.locator(".ledger tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.first).to_contain_text("700")
    expect(rows.last).to_contain_text("0 and 1,022 more")
    expect(page.locator(".plot .main-svg").first).to_be_visible()
    bars = 'document.querySelector(".plot").data[0].x'
    labels = page.evaluate(bars)
    assert set(labels[:2]) == {"700/1", "700/2"}
    assert set(labels[2:]) == {"0/1", "0/2"}


def test_loss_terms_of_many_ranks_that_belong_to_no_objective_are_counted(
    page: Page, service: Service
) -> None:
    for rank in range(40):  # nothing combines their gradients: the ledger is that of rank 0
        service.post(batch("apart", [step(1)], rank=rank, world_size=40))
    assert eventually(HANGS, judged(service, "apart", 1))
    page.goto("/runs/apart/steps/0/1")
    uncounted = page.locator("section", has_text="Not in an objective")
    expect(uncounted.locator("tbody tr")).to_have_count(64)
    expect(uncounted).to_contain_text("14 more are not shown")


def test_a_point_of_a_chart_and_the_step_field_both_open_the_ledger(
    page: Page, service: Service
) -> None:
    service.post(batch("three-steps", [step(n) for n in (1, 2, 3)]))
    open_run(page, "three-steps", 3)
    page.get_by_label("Ledger of step").fill("2")
    page.get_by_role("button", name="Open").press("Enter")
    expect(page.get_by_role("heading", name="Ledger of step 2")).to_be_visible()
    page.get_by_role("link", name="Step 3").click()
    expect(page.get_by_role("heading", name="Ledger of step 3")).to_be_visible()
    open_run(page, "three-steps", 3)
    page.locator("#chart-misallocation").scroll_into_view_if_needed()
    plot = page.locator("#chart-misallocation .nsewdrag")
    plot.scroll_into_view_if_needed()
    middle = plot.bounding_box()
    assert middle is not None
    x, y = middle["x"] + middle["width"] / 2, middle["y"] + middle["height"] / 2
    page.mouse.move(x - 3, y)
    page.mouse.move(x, y, steps=3)
    page.mouse.click(x, y)
    expect(page.get_by_role("heading", name="Ledger of step 2")).to_be_visible()
