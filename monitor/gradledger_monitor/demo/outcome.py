"""What the daemon found out about one of the demo's runs, read from its API."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from urllib.parse import quote

from rich.text import Text

from gradledger_monitor.demo.service import Daemon
from gradledger_monitor.reports.terminal import STYLES

LAST = 20  # steps over which the losses are averaged: one window's is noisy
SECONDS_TO_JUDGE = 60


class NotEvaluated(Exception):
    """The daemon did not judge the run in time."""


@dataclass(frozen=True)
class DemoResult:
    """A run that has ended, judged."""

    verdict: str
    findings: list[dict[str, Any]]
    metrics: dict[str, list[float | None]]
    page: str

    def mean(self, figure: str, last: int = 0) -> float:
        """The average of a figure over the run or its last steps; NaN where it was not measured."""
        return fmean(_known(self.metrics[figure])[-last:])

    def largest(self, figure: str) -> float:
        """The largest value of a figure."""
        return max(_known(self.metrics[figure]))


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None] or [float("nan")]


def wait_for_result(daemon: Daemon, run: str, steps: int) -> DemoResult:
    """Wait until all steps are judged, and read what came of it."""
    deadline = time.monotonic() + SECONDS_TO_JUDGE
    while time.monotonic() < deadline:
        for row in daemon.get(f"/runs?search={quote(run)}")["runs"]:
            if row["ended"] and row["steps"] >= steps:
                return _read(daemon, quote(row["id"]))
        time.sleep(0.2)
    raise NotEvaluated


def _read(daemon: Daemon, run: str) -> DemoResult:
    verdict = daemon.get(f"/runs/{run}/verdict")
    figures = daemon.get(f"/runs/{run}/series")
    return DemoResult(verdict["verdict"], verdict["findings"], figures, f"{daemon.url}/runs/{run}")


def result_text(result: DemoResult) -> Text:
    """The outcome in a few lines, each number with its meaning."""
    style = STYLES[result.verdict]
    title = result.findings[0]["title"] if result.findings else "every token counts the same"
    rows = [
        ("gradient weight on the wrong tokens", f"{result.mean('misallocation'):.1%}"),
        ("  in the worst step", f"{result.largest('misallocation'):.1%}"),
        ("balance (1 is right)", f"{result.mean('balance'):.4f}"),
        (f"loss that the script reports, last {LAST} steps", _loss(result, "loss_reported")),
        ("loss over all tokens, the true one", _loss(result, "loss_token")),
    ]
    lines = "".join(f"\n  {meaning:<46}{number:>9}" for meaning, number in rows)
    return Text.assemble((result.verdict.upper(), style), (f"  {title}", "bold"), lines)


def _loss(result: DemoResult, figure: str) -> str:
    return f"{result.mean(figure, LAST):.4f}"
