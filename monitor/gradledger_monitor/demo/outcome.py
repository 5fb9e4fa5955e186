"""The result of one of the demo's runs, read from the API of its service."""

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

LAST = 20  # steps over which the losses are averaged: that of a single window is noisy
TIMEOUT_SECONDS = 60


class NotEvaluated(Exception):
    """The service did not evaluate the run in time."""


@dataclass(frozen=True)
class DemoResult:
    """The evaluation of a run that has ended."""

    verdict: str
    findings: list[dict[str, Any]]
    metrics: dict[str, list[float | None]]
    page: str

    def mean(self, metric: str, last: int = 0) -> float:
        """The mean of a metric over the run or its last steps; NaN if it was not measured."""
        return fmean(_measured(self.metrics[metric])[-last:])

    def largest(self, metric: str) -> float:
        """The largest value of a metric."""
        return max(_measured(self.metrics[metric]))


def _measured(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None] or [float("nan")]


def wait_for_result(daemon: Daemon, run: str, steps: int) -> DemoResult:
    """Wait until all steps are evaluated, and return the result."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        for row in daemon.get(f"/runs?search={quote(run)}")["runs"]:
            if row["ended"] and row["steps"] >= steps:
                return _read(daemon, quote(row["id"]))
        time.sleep(0.2)
    raise NotEvaluated


def _read(daemon: Daemon, run: str) -> DemoResult:
    verdict = daemon.get(f"/runs/{run}/verdict")
    metrics = daemon.get(f"/runs/{run}/series")
    return DemoResult(verdict["verdict"], verdict["findings"], metrics, f"{daemon.url}/runs/{run}")


def result_text(result: DemoResult) -> Text:
    """The result in a few lines, each number with its meaning."""
    style = STYLES[result.verdict]
    title = result.findings[0]["title"] if result.findings else "every token has the same weight"
    rows = [
        ("gradient weight on the wrong tokens", f"{result.mean('misallocation'):.1%}"),
        ("  in the worst step", f"{result.largest('misallocation'):.1%}"),
        ("balance (1 is right)", f"{result.mean('balance'):.4f}"),
        (f"loss that the script reports, last {LAST} steps", _loss(result, "loss_reported")),
        ("loss over all tokens, the true one", _loss(result, "loss_token")),
    ]
    lines = "".join(f"\n  {meaning:<46}{number:>9}" for meaning, number in rows)
    return Text.assemble((result.verdict.upper(), style), (f"  {title}", "bold"), lines)


def _loss(result: DemoResult, metric: str) -> str:
    return f"{result.mean(metric, LAST):.4f}"
