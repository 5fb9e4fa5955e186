"""The import that the page on runs shows, done: a training without a service, imported later."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from helpers.command import gradledger
from helpers.service import running_service
from helpers.transcript import looks_like

PAGE = Path(__file__).parents[2] / "docs" / "runs.md"
SHOWN = re.compile(r"^```\n(1 file, .+?)^```", re.M | re.S)
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/runs/\S+")
TRAINING = ("-m", "gradledger_monitor.demo.byte_lm", "--steps", "30", "--accumulate")
NOWHERE = "http://127.0.0.1:9"


def test_an_import_prints_what_the_page_shows(tmp_path: Path) -> None:
    shown = SHOWN.search(PAGE.read_text())
    assert shown, f"{PAGE} shows no import"
    apart = {**os.environ, "OMP_NUM_THREADS": "1", "GRADLEDGER_SPOOL": str(tmp_path / "spool")}
    training = ("run", "--name", "byte-lm", "--", sys.executable, *TRAINING, "mean-of-means")
    trained = gradledger(*training, environment={**apart, "GRADLEDGER_URL": NOWHERE})
    assert trained.returncode == 0, trained.stderr
    with running_service(tmp_path / "runs.db") as service:
        there = {**apart, "GRADLEDGER_URL": service.url}
        done = gradledger("import", *(tmp_path / "spool").iterdir(), environment=there)
    assert len(ADDRESS.findall(done.stdout)) == 1
    assert looks_like(ADDRESS.sub("...", shown[1]), done.stdout), done.stdout
