"""scheduler.stepped_on_skip"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
before = scaler.get_scale()
scaler.step(optimizer)
scaler.update()
if scaler.get_scale() >= before:      # the step was not skipped
    scheduler.step()"""


class SteppedOnSkip(Rule):
    """The LR schedule advances on steps that the GradScaler skipped.

    **What it sees**

    ``scheduler.step()`` after an optimizer step that the ``GradScaler`` skipped.

    **Why it matters**

    Warm-up and decay run ahead of the applied updates. A few such steps at the start of a run
    are harmless; many shift the whole schedule.

    **What to do**

    Step the scheduler only if the scale has not fallen.

    **When it is silent**

    No step was skipped, or the scheduler was not stepped after those that were.

    **Incidents**

    Lightning-AI/pytorch-lightning#18828, NVIDIA-NeMo/Speech#3293,
    huggingface/transformers#11144
    """

    points_at = ("schedule",)
    many = Parameter(3, "scheduler steps after skipped steps")
    share = Parameter(0.05, "share of all scheduler steps", most=1.0)

    state = declare(_skipped=bool, _on_skip=int, _all=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._skipped = False
        self._on_skip = 0
        self._all = 0

    def after_gap(self) -> None:
        """The window before is missing: forget the last one that was evaluated."""
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
            return not_applicable("no LR scheduler")
        if not late:
            return OK
        many = self._on_skip >= self.many and self._on_skip > self.share * self._all
        return finding(
            "warning" if many else "info",
            "The LR schedule advances on skipped steps",
            f"Of {counted(self._all, 'scheduler step')}, {self._on_skip:,} followed an optimizer "
            "step that the GradScaler skipped, so the schedule is ahead of the updates.",
            FIX,
            on_skipped=self._on_skip,
            advances=self._all,
        )
