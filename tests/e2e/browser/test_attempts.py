"""The attempts of a job, as a browser shows them."""

from __future__ import annotations

import time

from playwright.sync_api import Page, expect

from helpers.batches import batch, eventually, fair_step, step
from helpers.patience import HANGS
from helpers.seeded import judged
from helpers.service import Service


def test_a_restarted_run_leads_to_the_attempt_before_and_back(page: Page, service: Service) -> None:
    for restarts, (run, one_step) in enumerate((("attempt-a", step), ("attempt-b", fair_step))):
        launcher = {"torchrun launch": "1f2e", "torchrun restarts": str(restarts)}
        started = time.time() - 60 + restarts
        records = [one_step(n) for n in range(1, 5 + restarts)]
        service.post(batch(run, records, name="elastic", started=started, environment=launcher))
        assert eventually(HANGS, judged(service, run, 4 + restarts))
    page.goto("/runs/attempt-b")
    line, rows = page.locator("#attempt"), page.locator("#attempts tbody tr")
    expect(line).to_have_text(
        "Attempt 2 of 2 of one job. The attempt before: attempt-a, last step 4, Broken."
    )
    expect(rows).to_have_count(2)
    expect(page.locator("#attempts tr[aria-current]")).to_contain_text("this run")
    line.get_by_role("link", name="attempt-a").click()
    expect(line).to_contain_text("The next attempt: attempt-b, last step 5, Balanced.")
    rows.nth(1).get_by_role("link", name="attempt-b").click()
    expect(page).to_have_url(f"{service.url}/runs/attempt-b")


def test_long_ids_of_attempts_do_not_widen_the_page_of_a_phone(
    page: Page, service: Service
) -> None:
    for restarts, letter in enumerate("cde"):
        launcher = {"torchrun launch": "3a4b", "torchrun restarts": str(restarts)}
        started = time.time() - 60 + restarts
        records = [fair_step(n) for n in range(1, 5)]
        service.post(batch(letter * 121, records, name="l", started=started, environment=launcher))
        assert eventually(HANGS, judged(service, letter * 121, 4))
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/runs/{'d' * 121}")
    expect(page.locator("#attempts tbody tr")).to_have_count(3)
    # neither the page nor the table scrolls sideways
    for part in ("html", "#attempt", "#attempts"):
        widths = page.locator(part).evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert widths[0] <= widths[1], part
