"""The forms of rules and retention: saved; or refused, with the input still in the form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from helpers import http
from helpers.axe import OF_COLOURS, violations
from helpers.batches import batch, eventually, step
from helpers.patience import HANGS
from helpers.seeded import judged
from helpers.service import Service, running_service

REFUSED = 422
BEHIND_THE_BAR = """(() => {
  const [bar, at] = [document.querySelector("#rules .save"), document.activeElement];
  if (bar.contains(at) || !at.closest("#rules tbody")) return "";
  const [above, below] = [at.getBoundingClientRect(), bar.getBoundingClientRect()];
  return above.bottom > below.top && above.top < below.bottom ? at.name : "";
})()"""


@pytest.fixture(autouse=True)
def default_settings(service: Service) -> None:
    """Each test begins with the defaults."""
    put(service, "rules", {"off": [], "thresholds": {}})
    put(service, "retention", {"keep_detail_days": None, "keep_steps_days": None})


@pytest.fixture
def errors() -> Iterator[list[str]]:
    """Only a refused form may cause an error of the page."""
    errors: list[str] = []
    yield errors
    assert [text for text in errors if f"a status of {REFUSED}" not in text] == []


def put(service: Service, section: str, settings: dict[str, Any]) -> None:
    """Change a section by the API."""
    answer = http.put(f"{service.url}/api/v1/settings/{section}", json=settings)
    assert answer.status_code == 200


def revision(service: Service) -> int:
    """How often the rules were changed."""
    return int(service.get("/settings/rules").json()["revision"])


@contextmanager
def refused(page: Page) -> Iterator[None]:
    """The block sends a form that is refused."""
    with page.expect_response(lambda answer: answer.status == REFUSED):
        yield
    expect(page.get_by_role("alert")).to_be_visible()


def open_rules(page: Page, *families: str) -> None:
    """The rules of the settings, with those of these families in view."""
    page.goto("/settings/rules")
    for family in families:
        page.locator("summary").filter(has_text=family).press("Enter")


def field(page: Page, name: str) -> Locator:
    """The field of a threshold or of a time."""
    return page.locator(f'[id="{name}"]')


def save(page: Page, section: str) -> None:
    """Save a section, by the keyboard."""
    page.get_by_role("button", name=f"Save {section}").press("Enter")


def test_a_threshold_and_a_disabled_rule_are_set_and_reset(page: Page, service: Service) -> None:
    before = revision(service)
    open_rules(page, "norm", "clip")
    field(page, "norm.spike.z").fill("6")
    page.get_by_label("clip.always_engaged is disabled").check()
    save(page, "rules")
    expect(page).to_have_url(f"{service.url}/settings/rules")
    expect(field(page, "norm.spike.z")).to_have_value("6")
    expect(field(page, "norm.spike.z-note")).to_have_text("set; default 4")
    expect(page.get_by_label("clip.always_engaged is disabled")).to_be_checked()
    expect(page.locator("#rules .save")).to_contain_text("Last saved")
    expect(page.locator("#rules [name=revision]")).to_have_value(str(before + 1))
    field(page, "norm.spike.z").fill("")  # the default
    page.get_by_label("clip.always_engaged is disabled").uncheck()
    save(page, "rules")
    expect(field(page, "norm.spike.z")).to_have_value("4")
    expect(page.get_by_label("clip.always_engaged is disabled")).not_to_be_checked()
    payload = service.get("/settings/rules").json()
    assert payload["revision"] == before + 2 and not [
        rule for rule in payload["rules"] if rule["off"]
    ]


def test_retention_is_chosen(page: Page, service: Service) -> None:
    page.goto("/settings/retention")
    field(page, "keep_detail_days").fill("7.5")
    save(page, "retention")
    expect(field(page, "keep_detail_days-note")).to_have_text("set; default 30")
    assert service.get("/settings/retention").json()["keep_detail_days"]["value"] == 7.5


def test_a_refused_form_keeps_the_input(page: Page, service: Service) -> None:
    before = revision(service)
    page.emulate_media(color_scheme="light")
    open_rules(page, "norm")
    field(page, "norm.spike.z").fill("0,5")
    field(page, "norm.spike.least").fill("2")
    field(page, "norm.spike.steps").fill("2.5")
    page.get_by_label("norm.nonfinite is disabled").check()
    with refused(page):
        save(page, "rules")
    expect(field(page, "norm.spike.z")).to_have_value("0,5")
    expect(field(page, "norm.spike.least")).to_have_value("2")
    expect(page.get_by_label("norm.nonfinite is disabled")).to_be_checked()
    expect(field(page, "norm.spike.z-error")).to_contain_text("'0,5' is not a number")
    expect(field(page, "norm.spike.steps-error")).to_contain_text("a whole number from 1 to 1,000")
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page, *OF_COLOURS) == []
    page.get_by_role("alert").get_by_role("link", name="norm.spike.z").press("Enter")
    assert page.evaluate("location.hash") == "#norm.spike.z"
    assert revision(service) == before
    field(page, "norm.spike.z").fill("0.5")
    field(page, "norm.spike.steps").fill("25")
    save(page, "rules")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(field(page, "norm.spike.least")).to_have_value("2")


def test_retention_that_makes_no_sense_is_refused_by_field(page: Page, service: Service) -> None:
    page.goto("/settings/retention")
    field(page, "keep_detail_days").fill("-1")
    field(page, "keep_steps_days").fill("soon")
    with refused(page):
        save(page, "retention")
    expect(field(page, "keep_detail_days-error")).to_contain_text("from 0 to 36,500; 0 keeps all")
    expect(field(page, "keep_steps_days-error")).to_contain_text("'soon' is not a number")
    expect(field(page, "keep_steps_days")).to_have_value("soon")


def test_a_concurrent_change_is_shown_beside_the_input(page: Page, service: Service) -> None:
    open_rules(page, "norm")
    put(service, "rules", {"thresholds": {"norm.spike": {"z": 8}}})
    field(page, "norm.spike.z").fill("6")
    with refused(page):
        save(page, "rules")
    expect(page.get_by_role("alert")).to_contain_text("These settings have changed")
    expect(field(page, "norm.spike.z")).to_have_value("6")
    expect(field(page, "norm.spike.z-note")).to_contain_text("now 8")
    save(page, "rules")  # knowing what is there
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(field(page, "norm.spike.z")).to_have_value("6")


def test_what_the_operator_set_cannot_be_typed_over(browser: Browser, tmp_path: Path) -> None:
    variables = {"keep_detail_days": "3", "rules_off": '["clip.*"]'}
    with running_service(tmp_path / "given.db", 0, **variables) as service:
        page = browser.new_page(base_url=service.url)
        page.goto("/settings/retention")
        expect(field(page, "keep_detail_days")).to_have_count(0)
        expect(page.locator("#retention")).to_contain_text("Set in GRADLEDGER_KEEP_DETAIL_DAYS")
        open_rules(page, "norm")
        expect(page.locator("#rules input[type=checkbox]")).to_have_count(0)
        expect(page.locator("#rules")).to_contain_text("set in GRADLEDGER_RULES_OFF")
        field(page, "norm.spike.z").fill("6")
        save(page, "rules")
        expect(field(page, "norm.spike.z-note")).to_have_text("set; default 4")
        assert violations(page) == []
        page.close()


def test_the_field_that_the_keyboard_is_at_is_never_behind_the_bar(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 500})
    open_rules(page, "run", "scheduler", "scaler", "norm", "loss", "eval")
    field(page, "run.stalled.span").focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        hidden = page.evaluate(BEHIND_THE_BAR)
        assert not hidden, hidden


def test_the_run_page_lists_the_changed_rules(page: Page, service: Service) -> None:
    overrides = {"off": ["clip.always_engaged"], "thresholds": {"norm.spike": {"z": 6}}}
    put(service, "rules", overrides)
    service.post(batch("r", [step(1)]))
    assert eventually(HANGS, judged(service, "r", 1))
    page.goto("/runs/r")
    expect(page.get_by_text("Changed from the default")).to_be_visible()
    expect(page.get_by_text("switched off in the settings").first).to_be_visible()
    expect(page.get_by_text("evaluated with z = 6 (default 4)").first).to_be_visible()
    assert violations(page) == []
