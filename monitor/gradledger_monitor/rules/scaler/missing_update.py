"""scaler.missing_update"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Precondition, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE
from gradledger_monitor.rules.state import declare

FIX = """\
scaler.step(optimizer)           # skips gradients that are not finite: it needs no guard
scaler.update()                  # at the end of every window"""


def _no_scaler_and_no_update(window: Window) -> Outcome | None:
    return None if window.facts.calls("update") else SCALER_IN_USE.unmet(window)


# A window without a backward, such as a second step, may hold the update of the one before.
SCALER_CALLED = Precondition("a GradScaler is in use or updated", _no_scaler_and_no_update)


class MissingUpdate(Rule):
    """Windows end without ``GradScaler.update()``.

    **What it sees**

    A scaled window follows another one of the same optimizer without an update between them; or
    gradients with a non-finite norm were discarded without an update.

    **Why it matters**

    Without ``update()`` the scale neither grows nor falls. A guard that skips ``step`` and
    ``update`` together skips all further steps once the scale is too large.

    **What to do**

    Call ``update()`` at the end of every window, also if you skip the step yourself.

    **When it is silent**

    One update for each window, anywhere after the step.

    **Incidents**

    espnet/espnet#2362, Haian-Jin/LVSM#19, Azure/MS-AMP#45
    """

    points_at = ("scaler_step", "clip_norm", "backward")
    inhibits = ("loop.dropped_windows",)  # once the scale is too large, the guard drops them all
    precondition = SCALER_CALLED

    state = declare(_stepped=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._stepped = False

    def after_gap(self) -> None:
        """The window before is missing: forget the last one that was evaluated."""
        self._stepped = False

    def evaluate(self, window: Window) -> Outcome:
        """No update since the window before, or none after gradients that were discarded."""
        facts = window.facts
        stepped_before, self._stepped = self._stepped, bool(facts.own_calls("scaler_step"))
        updates = [event.after for event in facts.calls("update")]
        abandoned = [index for index in _abandoned(facts) if index not in updates]
        if not abandoned and (updates or not stepped_before):
            return OK
        return finding(
            "error",
            "A window is abandoned without GradScaler.update()"
            if abandoned
            else "GradScaler.update() is not called",
            f"{_missing(abandoned)}. Without it, the loss scale stays at "
            f"{significant(facts.scale or 0.0)}.",
            FIX,
            scale=facts.scale,
            abandoned_after=abandoned[:16],
        )


def _missing(abandoned: list[int]) -> str:
    if abandoned:
        return (
            f"Gradients with a non-finite norm were discarded after micro-batch {abandoned[0]}, "
            "without GradScaler.update()"
        )
    return "The window before ended and this one ran without GradScaler.update() in between"


def _abandoned(facts: StepFacts) -> list[int]:
    """Micro-batches after which gradients with a non-finite norm were discarded."""
    clips = facts.own_calls("clip_norm")
    bad = {e.after for e in clips if e.norm is not None and not math.isfinite(float(e.norm))}
    if not bad:
        return []
    micro_batches = enumerate(facts.record.micro_batches)
    return [index for index, m in micro_batches if index and m.fresh and index in bad]
