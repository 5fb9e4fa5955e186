"""scaler.skipped_steps"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE
from gradledger_monitor.rules.sliding_count import push
from gradledger_monitor.rules.state import declare

FIX = """\
# find what is not finite before the scaler does
torch.autograd.set_detect_anomaly(True)
assert torch.isfinite(loss), batch"""


class SkippedSteps(Rule):
    """The scaler keeps skipping optimizer steps.

    **What it sees**

    Five skipped steps in a row, or more than 5 of the last 100, once the scale has settled: after
    the first step that was not skipped.

    **Why it matters**

    A skipped step throws its micro-batches away. A few halvings at the start are calibration;
    later, they say that gradients overflow or are not finite.

    **What to do**

    Look for NaN or inf in the loss (an empty mask, a log of zero), lower the learning rate, or use
    bf16 where the hardware has it.

    **When it is silent**

    The first halvings of a fresh scaler; one skip now and then as the scale grows and falls back.

    **Incidents**

    neosr-project/neosr#6, ymcui/Chinese-LLaMA-Alpaca#534
    """

    in_a_row = Parameter(5, "skipped steps in a row")
    share = Parameter(0.05, "share of the recent steps", most=1.0)
    recent = Parameter(100, "steps that are recent")

    kind = "T"

    precondition = SCALER_IN_USE

    state = declare(_settled=bool, _row=int, _last=deque[bool], _among=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._settled = False
        self._row = 0
        self._last: deque[bool] = deque(maxlen=self.recent)  # whether they were skipped
        self._among = 0  # how many of them were

    def evaluate(self, window: Window) -> Outcome:
        """Skips in a row, and among the last hundred."""
        skipped = window.facts.record.skipped
        self._settled = self._settled or not skipped
        if not self._settled:
            return OK
        self._among += push(self._last, skipped)
        self._row = min(self._row + 1, self.recent) if skipped else 0
        if self._row < self.in_a_row and self._among / self.recent <= self.share:
            return OK
        just_now = f", the last {self._row} in a row" if self._row > 1 else ""
        return finding(
            "warning",
            "The GradScaler keeps skipping steps",
            f"{self._among} of the last {len(self._last)} steps seen were skipped{just_now}: "
            "their gradients were not finite, and their data were thrown away.",
            FIX,
            in_a_row=self._row,
            skipped=self._among,
            of=len(self._last),
        )
