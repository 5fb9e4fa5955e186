"""scaler.missing_update"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE
from gradledger_monitor.rules.state import declare

FIX = """\
if torch.isfinite(norm):
    scaler.step(optimizer)
scaler.update()                  # always"""


class MissingUpdate(Rule):
    """Windows end, and ``scaler.update()`` never runs.

    **What it sees**

    A scaled window follows another one of the same optimizer, and no update ran between them; or a
    window was abandoned after a non-finite norm without an update.

    **Why it matters**

    The scale never grows back and never falls. A guard that skips ``step`` and ``update`` together
    skips for ever once the scale is too large.

    **What to do**

    Call ``update()`` at the end of every window, also when you skip the step yourself.

    **When it is silent**

    One update for each window, wherever it stands after the step.

    **Incidents**

    espnet/espnet#2362, Haian-Jin/LVSM#19, Azure/MS-AMP#45
    """

    precondition = SCALER_IN_USE

    state = declare(_stepped=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._stepped = False

    def after_gap(self) -> None:
        """Of the window before, nothing is known."""
        self._stepped = False

    def evaluate(self, window: Window) -> Outcome:
        """No update since the window before, or none after an abandoned part of this one."""
        facts = window.facts
        stepped_before, self._stepped = self._stepped, bool(facts.own_calls("scaler_step"))
        updates = [event.after for event in facts.calls("update")]
        abandoned = [place for place in _abandoned(facts) if place not in updates]
        if not abandoned and (updates or not stepped_before):
            return OK
        return finding(
            "error",
            "GradScaler.update() is never called"
            if not abandoned
            else "A window is abandoned without GradScaler.update()",
            "A window ended and the next one ran without an update in between: the scale "
            f"stays at {facts.scale:,.6g} whatever happens.",
            FIX,
            scale=facts.scale,
            abandoned_after=abandoned[:16],
        )


def _abandoned(facts: StepFacts) -> list[int]:
    """Places in the window where gradients of a non-finite norm were thrown away."""
    clips = facts.own_calls("clip_norm")
    bad = {e.after for e in clips if e.norm is not None and not math.isfinite(float(e.norm))}
    if not bad:
        return []
    micro_batches = enumerate(facts.record.micro_batches)
    return [index for index, m in micro_batches if index and m.fresh and index in bad]
