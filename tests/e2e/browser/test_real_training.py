"""A person watches a training that really runs, from the first step to knowing what is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from gradledger import autostart
from helpers.charts import points
from helpers.forkserver import Python
from helpers.gate import Gate, new_gate
from helpers.patience import HANGS
from helpers.service import Service

STEPS = 40
SCRIPT = Path(__file__).parents[2] / "integration" / "launcher" / "scripts" / "train.py"


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """The gate at half of the steps."""
    with new_gate(tmp_path / "gate") as created:
        yield created


def training(service: Service, folder: Path, gate: Path) -> Python:
    """The classic mistake in plain PyTorch, in the environment of ``gradledger run``."""
    arguments = [str(SCRIPT), "mean-of-means", str(STEPS), str(gate)]
    variables = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
    variables |= {"OMP_NUM_THREADS": "1", "GRADLEDGER_SPOOL": str(folder / "spool")}
    return Python(
        arguments, autostart.environment(variables, arguments, url=service.url, name="classic")
    )


def test_a_run_is_watched_its_finding_acknowledged_and_its_ledger_opened(
    page: Page, service: Service, tmp_path: Path, gate: Gate
) -> None:
    page.goto("/")
    process = training(service, tmp_path, gate.path)
    try:
        page.get_by_role("link", name="classic").click()
        expect(page.locator("#verdict")).to_contain_text("Broken")
        points(page, STEPS // 2)
        gate.open()
        points(page, STEPS)  # without a reload
    finally:
        gate.open()
        _, stderr = process.communicate(HANGS)
        assert process.returncode == 0, stderr
    expect(page.locator("#verdict")).to_contain_text(f"{STEPS}")
    suspect = page.locator(".tree .suspect a")
    expect(suspect).to_contain_text("Element weights differ")
    suspect.click()
    finding = page.locator('[data-rule="reduction.token_weights_unequal"]')
    expect(finding.locator(".sketch svg").first).to_be_visible()
    finding.get_by_text("Acknowledge or snooze").click()
    finding.get_by_label("Note").fill("a test of ours")
    finding.get_by_label("For").select_option("1")
    finding.get_by_role("button", name="Acknowledge").press("Enter")
    expect(page.locator(".acknowledged")).to_contain_text("a test of ours")
    rule = "reduction.token_weights_unequal"
    (run,) = (run["id"] for run in service.get("/runs").json()["runs"])
    payload = service.get(f"/runs/{run}/findings").json()
    assert any(
        finding["rule"] == rule and finding["acknowledged"] for finding in payload["findings"]
    )
    page.get_by_role("button", name="Undo").press("Enter")
    expect(page.locator(".acknowledged")).to_have_count(0)
    page.goto(f"/runs/{run}/steps/0/3")
    calls = page.locator(".timeline code").all_inner_texts()
    assert calls == ["backward 1", "backward 2", "backward 3", "backward 4", "optimizer.step"]
    expect(page.locator(".grid td")).to_have_count(4)
