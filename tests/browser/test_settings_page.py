"""The settings page: tokens and channels are created and removed; every setting is shown."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from gradledger_monitor.rules.docs import rules_by_id
from helpers.service import Service


def test_a_token_is_shown_once_and_can_be_revoked(page: Page, service: Service) -> None:
    page.goto("/settings")
    tokens = page.locator("#tokens")
    tokens.get_by_label("Name").fill("cluster A")
    tokens.get_by_role("button", name="Create token").press("Enter")
    secret = page.locator(".secret code").inner_text()
    assert secret.startswith("gradledger_")
    page.goto("/settings")
    expect(page.get_by_text(secret)).to_have_count(0)
    page.get_by_role("button", name="Revoke cluster A").press("Enter")
    expect(page.locator("#tokens")).to_contain_text("revoked")


def test_a_channel_and_a_route_are_added_and_removed(page: Page, service: Service) -> None:
    page.goto("/settings")
    alerts = page.locator("#alerts")
    alerts.get_by_label("Name").fill("on-call")
    alerts.get_by_label("URL").fill("https://example.org/hook")
    alerts.get_by_role("button", name="Add channel").press("Enter")
    expect(page.locator("#alerts .secret code")).to_contain_text("whsec_")
    alerts.get_by_label("Rules").fill("scaler.* ddp.*")
    alerts.get_by_role("button", name="Add route").press("Enter")
    expect(page.locator(".routes")).to_contain_text("scaler.* ddp.*")
    page.get_by_role("button", name="Remove route 1").press("Enter")
    expect(page.locator(".routes")).to_have_count(0)
    page.get_by_role("button", name="Remove on-call").press("Enter")
    expect(page.get_by_role("button", name="Remove on-call")).to_have_count(0)


def test_a_channel_that_makes_no_sense_is_refused_with_the_reason(
    page: Page, service: Service
) -> None:
    response = page.request.post(
        f"{service.url}/settings/channels", form={"name": "x", "url": "ftp://nowhere"}
    )
    assert response.status == 422
    assert "url" in response.text()


def test_every_rule_and_its_parameters_are_shown(page: Page, service: Service) -> None:
    page.goto("/settings")
    shown = set(page.locator("#rules tbody th code").all_inner_texts())
    assert shown == set(rules_by_id())
    expect(page.locator("#service")).to_contain_text("GRADLEDGER_RANK_TIMEOUT")
