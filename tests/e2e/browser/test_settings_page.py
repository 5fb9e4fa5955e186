"""The settings page: tokens are created and revoked; every setting is shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from gradledger_monitor.rules.docs import rules_by_id
from helpers import http
from helpers.service import Service


def test_a_token_is_shown_once_and_can_be_revoked(page: Page, service: Service) -> None:
    page.goto("/settings/tokens")
    tokens = page.locator("#tokens")
    tokens.get_by_label("Name").fill("cluster A")
    tokens.get_by_role("button", name="Create token").press("Enter")
    secret = page.locator(".secret code").inner_text()
    assert secret.startswith("gradledger_")
    page.goto("/settings/tokens")
    expect(page.get_by_text(secret)).to_have_count(0)
    page.get_by_role("button", name="Revoke cluster A").press("Enter")
    expect(page.locator("#tokens")).to_contain_text("revoked")


def test_every_rule_and_its_parameters_are_shown(page: Page, service: Service) -> None:
    page.goto("/settings/rules")
    for family in page.locator("#rules summary").all():
        family.click()
    shown = set(page.locator("#rules tbody th code").all_inner_texts())
    assert shown == set(rules_by_id())
    page.goto("/settings/service")
    expect(page.locator("#service")).to_contain_text("GRADLEDGER_RANK_TIMEOUT")


@pytest.fixture
def plain(browser: Browser, service: Service) -> Iterator[Page]:
    """A page in a browser without JavaScript."""
    context = browser.new_context(base_url=service.url, java_script_enabled=False)
    yield context.new_page()
    context.close()


def test_settings_are_searched_in_all_sections(plain: Page) -> None:
    plain.goto("/settings")
    expect(plain.locator("main section")).to_have_count(1)
    plain.get_by_label("Search all settings").fill("STALL progress")
    plain.get_by_role("button", name="Show").click()
    visible = plain.locator("#rules tbody tr:not([hidden])")
    expect(visible.filter(has_text="run.stalled")).to_have_count(1)
    assert visible.count() < len(rules_by_id())
    plain.goto("/settings?search=keep_steps")
    expect(plain.locator("#retention input[name=keep_steps_days]")).to_be_visible()
    expect(plain.locator("#retention input[name=keep_detail_days]")).to_be_hidden()
    plain.goto("/settings?search=nothing+of+this+name")
    expect(plain.get_by_text("No setting matches")).to_be_visible()
    expect(plain.locator("main section")).to_have_count(0)


def test_only_changed_settings_are_listed_and_saving_them_resets_no_other(
    page: Page, service: Service
) -> None:
    changed = {"off": ["clip.always_engaged"], "thresholds": {"norm.spike": {"z": 6}}}
    assert http.put(f"{service.url}/api/v1/settings/rules", json=changed).is_success
    page.goto("/settings/rules")
    page.get_by_label("Changed only").check()
    rules = page.locator("#rules tbody tr:not([hidden])")
    expect(rules).to_have_count(2)
    expect(page.locator("#service")).to_contain_text("GRADLEDGER_DB")
    page.locator('[id="norm.spike.z"]').fill("7")
    page.get_by_role("button", name="Save rules").press("Enter")
    expect(page).to_have_url(f"{service.url}/settings/rules")
    page.goto("/settings?search=norm.spike")  # the form has the rules that are not shown, too
    page.get_by_role("button", name="Save rules").press("Enter")
    page.goto("/settings?changed=only")
    expect(rules).to_have_count(2)
    expect(page.locator('[id="norm.spike.z"]')).to_have_value("7")
    expect(page.get_by_label("clip.always_engaged is disabled")).to_be_checked()
