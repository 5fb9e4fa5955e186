"""The list of runs, as a browser shows it."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from gradledger_monitor.api.forms import MAX_NOTE
from helpers.batches import EndRecord, batch, eventually, fair_step, step
from helpers.patience import HANGS
from helpers.seeded import judged
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


def sweep(service: Service) -> None:
    """Three runs: two broken, one balanced, each with its learning rate."""
    for number, make in ((1, step), (2, step), (3, fair_step)):
        steps = [make(n) for n in range(1, 6)]
        fields = {"name": f"sweep {number}", "config": {"learning_rate": number / 10}}
        service.post(batch(f"sweep-{number}", steps, **fields))
    for number in (1, 2, 3):
        assert eventually(HANGS, judged(service, f"sweep-{number}", 5))


def test_a_row_has_the_loss_and_its_course_and_the_number_of_findings(
    page: Page, service: Service
) -> None:
    sweep(service)
    page.goto("/?search=sweep")
    row = page.locator("[data-run=sweep-1]")
    expect(row.locator(".loss")).to_contain_text("2")
    path = row.locator(".loss path").get_attribute("d") or ""
    assert path.count("L") == 4  # through five steps
    expect(row.locator("[data-label=finding]")).to_have_text("1")
    expect(page.locator("[data-run=sweep-3] [data-label=findings]")).to_have_text("0")
    box = row.bounding_box()
    assert box is not None
    assert box["height"] <= 42


def test_chips_count_the_verdicts_worst_first_and_filter(page: Page, service: Service) -> None:
    sweep(service)
    page.goto("/?search=sweep")
    chips = page.get_by_role("navigation", name="Verdicts").get_by_role("link")
    assert [text.split() for text in chips.all_inner_texts()] == [
        ["All", "3"],
        ["Broken", "2"],
        ["Balanced", "1"],
    ]
    chips.nth(1).click()
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.get_by_role("link", name="Broken 2")).to_have_attribute("aria-current", "true")
    assert "search=sweep" in page.url


def test_columns_of_the_configuration_are_chosen_and_stay_in_the_address(
    page: Page, service: Service
) -> None:
    sweep(service)
    page.goto("/?search=sweep")
    page.locator("#columns summary").click()
    page.get_by_label("learning_rate").check()
    page.get_by_label("Duration").uncheck()
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("columnheader", name="learning_rate")).to_be_visible()
    expect(page.get_by_role("columnheader", name="Duration")).to_have_count(0)
    expect(page.locator("[data-run=sweep-2] [data-label=learning_rate]")).to_have_text("0.2")
    page.get_by_role("link", name="Broken 2").click()
    expect(page.get_by_role("columnheader", name="learning_rate")).to_be_visible()


def test_the_list_is_filtered_while_one_types(page: Page, service: Service) -> None:
    sweep(service)
    page.goto("/")
    page.evaluate("window.stillHere = true")
    page.get_by_role("searchbox").press_sequentially("sweep 2")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert "search=sweep+2" in page.url
    expect(page.get_by_role("searchbox")).to_be_focused()
    assert page.evaluate("window.stillHere") is True


def test_an_archived_run_leaves_the_list_and_is_found_by_its_tag(
    page: Page, service: Service
) -> None:
    service.post(batch("done-with", [fair_step(1)], name="done with"))
    page.goto("/runs/done-with")
    page.get_by_role("button", name="Archive").click()
    expect(page.get_by_role("link", name="archived")).to_be_visible()
    page.goto("/?search=done+with")
    expect(page.get_by_text("No run matches")).to_be_visible()
    page.get_by_role("link", name="Archived").click()
    expect(page.locator("tr[data-run]")).to_have_count(1)
    page.goto("/runs/done-with")
    page.get_by_role("button", name="Remove the tag archived").click()
    page.goto("/?search=done+with")
    expect(page.locator("[data-run=done-with]")).to_be_visible()


def test_selected_runs_are_tagged_and_archived_together(page: Page, service: Service) -> None:
    for run in ("tagged-1", "tagged-2", "tagged-3"):
        service.post(batch(run, [fair_step(1)], name=run, project="tagging"))
    page.goto("/?search=tagging")
    for run in ("tagged-1", "tagged-2"):
        page.locator(f"[data-run={run}] input").check()
    page.get_by_label("Tag for the selected runs").fill("good")
    page.get_by_role("button", name="Add tag").click()
    tag = page.locator("tr[data-run] .tag", has_text="good")
    expect(tag).to_have_count(2)
    expect(page.locator("[data-run=tagged-3] .tag")).to_have_count(0)
    expect(page.get_by_role("searchbox")).to_have_value("tagging")  # the view stays
    page.locator("[data-run=tagged-3] input").check()
    page.get_by_role("button", name="Archive").click()
    expect(page.locator("tr[data-run]")).to_have_count(2)
    page.get_by_role("link", name="Archived").click()
    expect(page.locator("[data-run=tagged-3]")).to_be_visible()


def test_a_form_after_typing_returns_to_the_list_that_was_shown(
    page: Page, service: Service
) -> None:
    for run in ("typed-1", "typed-2", "untyped"):
        service.post(batch(run, [fair_step(1)], name=run))
    page.goto("/")
    page.get_by_role("searchbox").press_sequentially("typed-")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.locator("[data-run=typed-1] input").check()
    page.get_by_label("Tag for the selected runs").fill("kept")
    page.get_by_role("button", name="Add tag").click()
    expect(page.locator("[data-run=typed-1] .tag")).to_have_text("kept")
    expect(page.get_by_role("searchbox")).to_have_value("typed-")
    expect(page.locator("tbody tr")).to_have_count(2)


def test_selected_runs_are_deleted_after_a_confirmation(page: Page, service: Service) -> None:
    for run in ("deleted-1", "deleted-2", "deleted-3"):
        service.post(batch(run, [fair_step(1)], name=run, project="deleting"))
    page.goto("/?search=deleting")
    for run in ("deleted-1", "deleted-2"):
        page.locator(f"[data-run={run}] input").check()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Delete 2 runs?")).to_be_visible()
    page.get_by_role("link", name="Cancel").click()
    expect(page.locator("tr[data-run]")).to_have_count(3)
    page.locator("[data-run=deleted-1] input").check()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete 1 run").click()
    expect(page.locator("tr[data-run]")).to_have_count(2)
    expect(page.get_by_role("searchbox")).to_have_value("deleting")
    assert service.get("/runs/deleted-1").status_code == 404


def test_a_note_is_written_for_selected_runs_and_shown_with_each(
    page: Page, service: Service
) -> None:
    for run in ("noted-1", "noted-2"):
        service.post(batch(run, [fair_step(1)], name=run, project="noting"))
    page.goto("/?search=noting")
    for run in ("noted-1", "noted-2"):
        page.locator(f"[data-run={run}] input").check()
    page.get_by_role("button", name="Note").click()
    page.get_by_label("Note").fill("with the new <collator>")
    page.get_by_label("Your name").fill("Ada")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("tr[data-run] .note")).to_have_count(2)
    page.goto("/runs/noted-1")
    expect(page.locator("#note")).to_contain_text("with the new <collator> Ada")
    page.get_by_role("button", name="Edit note").click()
    expect(page.get_by_label("Note")).to_have_value("with the new <collator>")
    page.get_by_label("Note").fill("批" * MAX_NOTE)  # 9 bytes each in a form
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Edit note").click()
    expect(page.get_by_label("Note")).to_have_value("批" * MAX_NOTE)
    page.get_by_label("Note").fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="noted-1")).to_be_visible()
    expect(page.locator("#note")).to_have_count(0)


def test_runs_are_selected_without_javascript(page: Page, service: Service) -> None:
    service.post(batch("plain", [fair_step(1)], name="plain"))
    browser = page.context.browser
    assert browser is not None
    with browser.new_context(base_url=service.url, java_script_enabled=False) as context:
        plain = context.new_page()
        plain.goto("/?search=plain")
        expect(plain.get_by_role("button", name="Archive")).to_be_hidden()
        plain.locator("[data-run=plain] input").check()
        plain.get_by_label("Tag for the selected runs").fill("found")
        plain.get_by_role("button", name="Add tag").click()
        expect(plain.locator("[data-run=plain] .tag")).to_have_text("found")
