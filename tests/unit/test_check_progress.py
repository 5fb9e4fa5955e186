"""The lines that ``gradledger check`` writes while a person waits at a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradledger_monitor.gate.progress import Progress, line
from gradledger_monitor.store.runs.queries import RunRow

RUN = RunRow(
    id="r",
    name="train",
    project="p",
    started=1.0,
    last_seen=2.0,
    ended=False,
    world_size=2,
    verdict="balanced",
    primary=None,
    steps=34,
    tokens=100,
    optimizers=["SGD"],
    config={},
    environment={},
    earlier_version=False,
    evaluation_note=None,
)


def test_a_line_has_the_step_the_ranks_the_verdict_and_the_time() -> None:
    assert line(RUN, 60, 12.4) == "step 34/60, 2 ranks, ok so far, 12 s"


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (replace(RUN, verdict="incomplete", world_size=1), "step 34, 1 rank, no findings so far"),
        (replace(RUN, verdict="broken", primary="A title"), "step 34, 2 ranks, broken: A title"),
    ],
)
def test_a_line_claims_no_more_than_is_known(run: RunRow, text: str) -> None:
    assert line(run, None, 75) == f"{text}, 1 min 15 s"


def test_lines_come_at_growing_intervals_once_a_step_is_recorded() -> None:
    now, runs, lines = [0.0], [replace(RUN, steps=0)], list[str]()
    progress = Progress(lambda: runs, None, lines.append, lambda: now[0])
    for second in range(100):
        now[0] = float(second)
        if second == 5:
            runs[0] = RUN
        progress.update()
    times = [text.rsplit(", ")[-1] for text in lines]
    assert times == ["6 s", "14 s", "30 s", "1 min", "1 min 30 s"]
