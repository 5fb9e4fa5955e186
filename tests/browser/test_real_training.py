"""A person watches a training that really runs, from the first step to knowing what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, expect

from helpers.batches import eventually
from helpers.charts import points
from helpers.service import Service

STEPS = 40
SCRIPT = Path(__file__).parents[1] / "integration" / "launcher" / "scripts" / "train.py"


def training(service: Service, folder: Path) -> subprocess.Popen[bytes]:
    """The classic mistake in plain PyTorch, under ``gradledger run``."""
    run = [sys.executable, "-m", "gradledger.cli", "run", "--url", service.url, "--name", "classic"]
    script = [sys.executable, str(SCRIPT), "mean-of-means", str(STEPS), "0.05"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
    variables = {"OMP_NUM_THREADS": "1", "GRADLEDGER_SPOOL": str(folder / "spool")}
    return subprocess.Popen([*run, "--", *script], env={**environ, **variables})


def test_a_real_run_is_watched_understood_and_acknowledged(
    page: Page, service: Service, tmp_path: Path
) -> None:
    page.goto("/")
    process = training(service, tmp_path)
    try:
        page.get_by_role("link", name="classic").click(timeout=90_000)
        expect(page.locator("#verdict")).to_contain_text("Broken", timeout=60_000)
        points(page, STEPS)  # without a reload
    finally:
        assert process.wait(120) == 0
    expect(page.locator("#verdict")).to_contain_text(f"{STEPS}", timeout=20_000)
    suspect = page.locator(".tree .suspect a")
    expect(suspect).to_contain_text("Token weights differ")
    suspect.click()
    finding = page.locator('[data-rule="reduction.token_weights_unequal"]')
    expect(finding.locator(".sketch svg").first).to_be_visible()
    finding.get_by_text("Acknowledge or snooze").click()
    finding.get_by_label("Note").fill("a test of ours")
    finding.get_by_label("For").select_option("1")
    finding.get_by_role("button", name="Acknowledge").press("Enter")
    expect(page.locator(".acknowledged")).to_contain_text("a test of ours")
    rule = "reduction.token_weights_unequal"
    payload = service.get(f"/runs/{page.url.split('/')[-1].split('#')[0]}/findings").json()
    assert any(
        finding["rule"] == rule and finding["acknowledged"] for finding in payload["findings"]
    )
    page.get_by_role("button", name="Undo").press("Enter")
    expect(page.locator(".acknowledged")).to_have_count(0)


def test_the_ledger_of_a_real_step_shows_what_the_loop_did(
    page: Page, service: Service, tmp_path: Path
) -> None:
    assert training(service, tmp_path).wait(180) == 0
    runs = service.get("/runs").json()["runs"]
    assert eventually(30, lambda: bool(service.get("/runs").json()["runs"][0]["steps"] == STEPS))
    page.goto(f"/runs/{runs[0]['id']}/steps/0/3")
    calls = page.locator(".timeline code").all_inner_texts()
    assert calls == ["backward 1", "backward 2", "backward 3", "backward 4", "optimizer.step"]
    expect(page.locator(".grid td")).to_have_count(4)
