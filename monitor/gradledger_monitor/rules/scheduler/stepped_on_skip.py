"""scheduler.stepped_on_skip"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
before = scaler.get_scale()
scaler.step(optimizer)
scaler.update()
if scaler.get_scale() >= before:      # the step was not skipped
    scheduler.step()"""


class SteppedOnSkip(Rule):
    """The LR schedule advances on steps that the scaler skipped.

    **What it sees**

    ``scheduler.step()`` after an optimizer step that the GradScaler skipped.

    **Why it matters**

    Warm-up and decay run ahead of the updates that were really made. A few at the start of a
    run are harmless; many shift the whole schedule.

    **What to do**

    Step the scheduler only when the scale has not fallen.

    **When it is silent**

    No step was skipped, or the scheduler stood still on those that were.

    **Incidents**

    Lightning-AI/pytorch-lightning#18828, NVIDIA-NeMo/Speech#3293, huggingface/transformers#11144
    """

    many = Parameter(3, "advances on skipped steps")
    share = Parameter(0.05, "share of all advances", most=1.0)

    state = declare(_skipped=bool, _on_skip=int, _all=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._skipped = False
        self._on_skip = 0
        self._all = 0

    def after_gap(self) -> None:
        """Of the window before, nothing is known."""
        self._skipped = False

    def evaluate(self, window: Window) -> Outcome:
        """Schedule calls between a skipped step and the next backward."""
        record = window.facts.record
        if "schedule" in record.missing:
            return not_measured(record.missing["schedule"])
        calls = window.facts.calls("schedule")
        self._all += len(calls)
        late = self._skipped and any(event.after == 0 for event in calls)
        self._on_skip += late
        self._skipped = record.skipped
        if not self._all:
            return not_applicable("no LR scheduler was stepped")
        if not late:
            return OK
        many = self._on_skip >= self.many and self._on_skip > self.share * self._all
        return finding(
            "warning" if many else "info",
            "The LR schedule advances on skipped steps",
            f"The scheduler has advanced {self._on_skip} times after a step that the GradScaler "
            f"skipped, of {self._all} advances in all.",
            FIX,
            on_skipped=self._on_skip,
            advances=self._all,
        )
