"""What ``gradledger run`` writes about a run: its address, its findings, and the final verdict.

The uploader thread writes all of it, from the replies of the service.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gradledger import stderr

if TYPE_CHECKING:
    from gradledger.on_finding import ReportedFinding

END_SECONDS = 0.5  # for the verdict; within the time that the end of the process waits anyway
PAUSE_SECONDS = 0.05  # between two requests
MAX_FINDINGS = 5
MAX_TEXT = 300  # characters of a line
COLOURS = {
    "error": "31",
    "broken": "31",
    "warning": "33",
    "suspect": "33",
    "balanced": "32",
    "info": "36",
    "incomplete": "36",
}


class RunState(NamedTuple):
    """A run in a reply of the service."""

    verdict: str
    steps: int  # that were evaluated
    revision: int  # counts the batches of the run
    evaluated_revision: int  # everything up to this batch is evaluated
    ended: bool  # every rank reported its end


StateRequest = Callable[[], RunState | None]  # None: the service does not answer


def finding_lines(finding: ReportedFinding) -> list[str]:
    """A finding in three lines."""
    return [_headline(finding), _text(finding.summary), finding.url]


def inactive_line(finding: ReportedFinding) -> str:
    """A finding that was written and that the service no longer lists, in one line."""
    return f"no longer active: {_text(finding.title)} ({finding.rule})"


def end_lines(state: RunState | None, findings: Sequence[ReportedFinding], url: str) -> list[str]:
    """The verdict, the findings and the address; ``state`` is None if it is not known yet."""
    if state is None:
        return [f"the verdict is not computed yet: {url}"]
    count = {0: "no findings", 1: "1 finding"}.get(len(findings), f"{len(findings)} findings")
    verdict = stderr.coloured(_text(state.verdict).upper(), COLOURS.get(state.verdict, "1"))
    lines = [f"{verdict} {_extent(state)}: {count}"]
    lines += [_headline(finding) for finding in findings[:MAX_FINDINGS]]
    return [*lines, url]


def verdict_text(state: RunState | None) -> str:
    """``broken after 30 evaluated steps``; empty before the first one."""
    return "" if state is None or not state.steps else f"{_text(state.verdict)} {_extent(state)}"


def _extent(state: RunState) -> str:
    steps = "1 evaluated step" if state.steps == 1 else f"{state.steps:,} evaluated steps"
    return f"after {steps}{'' if state.ended else ' so far'}"


def final_state(
    state: RunState, request: StateRequest, seconds: float = END_SECONDS
) -> RunState | None:
    """The state in which all records up to ``state`` are evaluated; None if that takes too long."""
    end, latest = time.monotonic() + seconds, state
    while latest.evaluated_revision < state.revision:
        if time.monotonic() >= end:
            return None
        time.sleep(PAUSE_SECONDS)
        answer = request()
        if answer is None:
            return None
        latest = answer
    return latest


def _headline(finding: ReportedFinding) -> str:
    severity = stderr.coloured(finding.severity, COLOURS.get(finding.severity, "1"))
    return f"{severity}: {_text(finding.title)} ({finding.rule}, since step {finding.since_step})"


def _text(text: str) -> str:
    """A text of the service in one line, without control characters."""
    line = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 3].rsplit(' ', 1)[0]}..."
