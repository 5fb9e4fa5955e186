"""One run, as a browser shows it, live."""

from __future__ import annotations

from playwright.sync_api import Browser, Page, expect

from gradledger.records import MicroBatch, StepRecord
from helpers.batches import batch, eventually, fair_step, step
from helpers.charts import open_run, points, press, release, shows_all, stop, zoom, zoomed
from helpers.patience import HANGS
from helpers.seeded import judged
from helpers.service import Service


def steps(first: int, last: int) -> list[StepRecord]:
    return [step(number) for number in range(first, last + 1)]


def test_the_run_page_shows_the_bug_its_size_and_its_fix(page: Page, service: Service) -> None:
    service.post(batch("wrong", steps(1, 5), name="mean of means"))
    open_run(page, "wrong", 5)
    expect(page.locator("#verdict")).to_contain_text("Broken")
    expect(page.locator("#verdict")).to_contain_text("Token weights differ between micro-batches")
    finding = page.locator('[data-rule="reduction.token_weights_unequal"]')
    expect(finding).to_contain_text("25.0%")  # tokens 10 and 30, half the weight each
    expect(finding.get_by_role("link", name="step 1")).to_be_visible()
    expect(finding.locator("pre")).to_contain_text('reduction="sum"')
    fix = finding.locator("pre").inner_text()
    finding.get_by_role("button", name="Copy the fix").click()
    expect(page.get_by_text("Copied", exact=True)).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").strip() == fix.strip()


def test_an_open_page_of_a_run_that_died_has_no_speed_beside_lost(
    page: Page, service: Service
) -> None:
    service.post(batch("killed", steps(1, 20), config={"max_steps": 400}))
    open_run(page, "killed", 20)
    verdict = page.locator("#verdict")
    expect(verdict.get_by_text("1 step/s")).to_be_visible()
    stop(page)
    expect(verdict.get_by_text("lost")).to_be_visible()
    expect(verdict.get_by_text("1 step/s")).to_be_hidden()
    expect(verdict.get_by_text("ETA")).to_be_hidden()


def test_without_javascript_there_is_no_control_that_needs_it(
    browser: Browser, service: Service
) -> None:
    service.post(batch("plain", steps(1, 20), name="plain"))
    assert eventually(HANGS, judged(service, "plain", 20))
    with browser.new_context(base_url=service.url, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto("/runs/plain")
        expect(page.locator("#verdict")).to_contain_text("Broken")
        expect(page.get_by_text("The charts need JavaScript.")).to_be_visible()
        for selector in (
            *("#theme", ".copy", "[data-tool]", "[data-move]", "#smoothing", "[name=unit]"),
            *("#reset-zoom", "#live", ".toggle", ".plot"),
        ):
            for control in page.locator(selector).all():
                expect(control).to_be_hidden()
        page.get_by_label("Ledger of step").fill("7")
        page.get_by_role("button", name="Open").click()
        expect(page.locator("h1")).to_contain_text("7")


def test_charts_grow_without_a_reload_and_keep_the_zoom_until_it_is_reset(
    page: Page, service: Service
) -> None:
    service.post(batch("growing", steps(1, 20)))
    open_run(page, "growing", 20)
    reset = page.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_hidden()
    page.evaluate("window.stillHere = true")
    shown = zoom(page)
    zoomed(page, shown)
    for first in (21, 31):
        service.post(batch("growing", steps(first, first + 9)))
        points(page, first + 9)
    assert page.evaluate("window.stillHere") is True
    zoomed(page, shown)
    expect(page.locator("#verdict")).to_contain_text("40")
    reset.click()
    shows_all(page, 40)
    expect(reset).to_be_hidden()


def test_a_drag_selects_the_steps_under_it_while_the_run_goes_on(
    page: Page, service: Service
) -> None:
    service.post(batch("dragged", steps(1, 20)))
    open_run(page, "dragged", 20)
    pressed = press(page)
    service.post(batch("dragged", steps(21, 60)))
    points(page, 60)
    first, last = release(page, pressed)
    assert 5 < first < 6.5
    assert 14.5 < last < 16
    expect(page.locator("#verdict")).to_contain_text("60")


def test_a_finding_that_arrives_leaves_the_chart_under_the_pointer_where_it_is(
    page: Page, service: Service
) -> None:
    service.post(batch("pointed", [fair_step(1)]))
    # the chart is in sight unscrolled, and the page can be scrolled by as much as the finding adds
    page.set_viewport_size({"width": 1280, "height": 800})
    open_run(page, "pointed", 1)
    expect(page.locator("#verdict")).to_contain_text("Balanced")
    chart = page.locator("#chart-norm .nsewdrag")
    chart.hover()
    before = chart.bounding_box()
    service.post(batch("pointed", steps(2, 9)))
    expect(page.locator(".finding h3")).to_be_visible()
    after = chart.bounding_box()
    assert before is not None
    assert after is not None
    assert abs(after["y"] - before["y"]) < 2


def test_a_run_that_breaks_is_broken_on_the_open_page(page: Page, service: Service) -> None:
    service.post(batch("breaking", [fair_step(n) for n in range(1, 4)]))
    open_run(page, "breaking", 3)
    expect(page.locator("#verdict")).to_contain_text("Balanced")
    service.post(batch("breaking", steps(4, 8)))
    expect(page.locator("#verdict")).to_contain_text("Broken")
    expect(page.locator(".finding h3")).to_contain_text("Token weights differ")


def test_what_was_not_measured_is_shown_as_such_with_its_reason(
    page: Page, service: Service
) -> None:
    unseen = MicroBatch(loss=1.0, missing={"terms": "the loss is inside torch.compile"})
    service.post(batch("unmeasured", [StepRecord(0, n, 1_000.0 + n, [unseen]) for n in (1, 2)]))
    open_run(page, "unmeasured", 2)
    expect(page.locator("#verdict")).to_contain_text("Incomplete")
    node = page.locator(".tree .is-not_measured", has_text="reduction contract")
    expect(node).to_contain_text("the loss is inside torch.compile")
    page.locator("#chart-balance").scroll_into_view_if_needed()
    expect(page.locator("#chart-balance")).to_have_attribute("data-empty", "")


def test_the_optimizer_is_chosen_when_there_are_several(page: Page, service: Service) -> None:
    both = [fair_step(1), fair_step(2), step(1, optimizer=1)]
    service.post(batch("two-optimizers", both, optimizers=["AdamW", "SGD"]))
    open_run(page, "two-optimizers", 2)
    # when it comes later, it may push the link from under the click
    expect(page.locator(".finding")).to_be_visible()
    page.get_by_role("link", name="SGD").click()
    points(page, 1)
    expect(page.get_by_role("link", name="SGD")).to_have_attribute("aria-current", "true")


def test_the_page_of_an_unknown_run_links_to_the_list_of_runs(page: Page, service: Service) -> None:
    answer = service.get("/../../runs/nobody")
    assert answer.status_code == 404
    assert "Run not found" in answer.text


def test_a_click_switches_the_theme_once(page: Page, service: Service) -> None:
    service.post(batch("themed", steps(1, 2)))
    open_run(page, "themed", 2)  # its script imports the one that handles the click
    page.get_by_role("button", name="Theme: Auto").click()
    expect(page.get_by_role("button", name="Theme: Light")).to_be_visible()


ORDER = """["charts", "checks", "evaluation"]
  .map((id) => document.getElementById(id))
  .filter((part) => part.offsetHeight)
  .sort((a, b) => a.offsetTop - b.offsetTop)
  .map((part) => part.id).join()"""


def test_the_charts_of_a_healthy_run_come_first_and_findings_before_them(
    page: Page, service: Service
) -> None:
    service.post(batch("healthy", [fair_step(n) for n in (1, 2)]))
    assert eventually(HANGS, judged(service, "healthy", 2))
    open_run(page, "healthy", 2)
    assert page.evaluate(ORDER) == "charts,checks"
    verdict = page.locator("#verdict").bounding_box()
    assert verdict is not None
    assert verdict["height"] < 90
    service.post(batch("healthy", steps(3, 8)))
    expect(page.locator(".finding h3")).to_be_visible()
    assert page.evaluate(ORDER) == "evaluation,charts"


def test_an_incomplete_run_shows_before_its_charts_what_was_not_measured(
    page: Page, service: Service
) -> None:
    hidden = MicroBatch(loss=1.0, missing={"terms": "the loss is inside torch.compile"})
    records = [StepRecord(0, n, 1_700_000_000.0 + n, [hidden]) for n in range(1, 6)]
    service.post(batch("hidden", records))
    assert eventually(HANGS, judged(service, "hidden", 5))
    open_run(page, "hidden", 5)
    expect(page.locator("#verdict")).to_contain_text("the loss is inside torch.compile")
    assert page.evaluate(ORDER) == "evaluation,charts"
    expect(page.locator("#evaluation").get_by_role("heading", name="Decision tree")).to_be_visible()
    balance = page.locator("#chart-balance .plot")
    balance.scroll_into_view_if_needed()
    reason = "Not measured: the loss is inside torch.compile"
    expect(balance).to_have_attribute("data-reason", reason)


def test_a_chart_without_data_gets_its_reason_from_the_first_evaluation(
    page: Page, service: Service
) -> None:
    service.post(batch("unseen", []))
    page.goto("/runs/unseen")
    balance = page.locator("#chart-balance .plot")
    expect(balance).to_have_attribute("data-reason", "No evaluated steps")
    hidden = MicroBatch(loss=1.0, missing={"terms": "the loss is inside torch.compile"})
    records = [StepRecord(0, n, 1_700_000_000.0 + n, [hidden]) for n in range(1, 6)]
    service.post(batch("unseen", records))
    balance.scroll_into_view_if_needed()
    reason = "Not measured: the loss is inside torch.compile"
    expect(balance).to_have_attribute("data-reason", reason)
