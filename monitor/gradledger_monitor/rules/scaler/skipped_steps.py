"""scaler.skipped_steps"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.circumstances import Onset
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, about_steps, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE, has_nan_loss
from gradledger_monitor.rules.sliding_count import push
from gradledger_monitor.rules.state import declare

FIX = """\
# find the first operation and batch that are not finite
torch.autograd.set_detect_anomaly(True)
assert torch.isfinite(loss), batch"""

FIX_START = """\
# begin with a scale at which steps are not skipped; the default is 2.0**16
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)"""


class SkippedSteps(Rule):
    """The GradScaler skips many optimizer steps.

    **What it sees**

    Five skipped steps in a row, or more than 5 of the last 100, after the first step that was
    not skipped, or that has a NaN loss: the skipped steps before it calibrate the scale. These are
    information if they are 10 or more.

    **Why it matters**

    A skipped step discards its micro-batches. A few at the start calibrate the scale; later
    ones show that gradients overflow or are not finite. The finding states how many of them have
    a NaN loss, which no loss scale changes, and how many calibrated the scale.

    **What to do**

    Look for NaN or inf in the loss (an empty mask, a logarithm of zero), lower the learning
    rate, or use bf16 if the hardware supports it.

    **When it is silent**

    Fewer than 10 skipped steps of a new scaler; an occasional skip as the scale grows and falls
    back.

    **Incidents**

    neosr-project/neosr#6, ymcui/Chinese-LLaMA-Alpaca#534
    """

    points_at = ("scaler_step",)
    in_a_row = Parameter(5, "skipped steps in a row")
    share = Parameter(0.05, "share of skipped steps among the recent ones", most=1.0)
    recent = Parameter(100, "number of recent steps")
    first = Parameter(10, "skipped steps at the start that are information")

    kind = "T"

    precondition = SCALER_IN_USE

    state = declare(
        _settled=bool,
        _row=int,
        _last=deque[bool],
        _among=int,
        _calibrating=int,
        _first_scale=float | None,
        _nan=int,
        _onset=Onset,
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._settled = False
        self._calibrating = 0  # skipped steps before that
        self._first_scale: float | None = None  # at the first of these
        self._nan = 0  # later skipped steps with a NaN loss
        self._onset = Onset()  # the first later skipped step
        self._row = 0
        self._last: deque[bool] = deque(maxlen=self.recent)  # whether each was skipped
        self._among = 0  # number of steps in ``_last`` that were

    def evaluate(self, window: Window) -> Outcome:
        """Skips in a row, and among the recent steps."""
        skipped = window.facts.record.skipped
        is_nan = skipped and has_nan_loss(window.facts)
        self._settled = self._settled or not skipped or is_nan
        if not self._settled:
            return self._calibrates(window)
        self._nan += is_nan
        if skipped and not self._onset.step:
            self._onset.note(window)
        self._among += push(self._last, skipped)
        self._row = min(self._row + 1, self.recent) if skipped else 0
        if self._row < self.in_a_row and self._among / self.recent <= self.share:
            return OK
        in_a_row = f", the last {self._row} in a row" if self._row > 1 else ""
        return finding(
            "warning",
            "The GradScaler skips many steps",
            f"{self._among} of the last {counted(len(self._last), 'recorded step')} were skipped"
            f"{in_a_row}. Their gradients were not finite, so their data was not used. "
            f"{self._origin()}{self._onset.text}",
            FIX,
            in_a_row=self._row,
            skipped=self._among,
            of=len(self._last),
            with_nan_loss=self._nan,
            calibrating=self._calibrating,
            **self._onset.evidence,
        )

    def _calibrates(self, window: Window) -> Outcome:
        """The scale has been too large from the start: it is lowered at each skipped step."""
        scale = window.facts.scale
        self._calibrating += 1
        if self._first_scale is None:
            self._first_scale = scale
        if self._calibrating < self.first:
            return OK
        report = finding(
            "info",
            "The GradScaler skipped the first steps",
            f"The first {counted(self._calibrating, 'recorded step')} were skipped: their "
            "gradients were not finite, so their data was not used. The loss scale was "
            f"{significant(self._first_scale or 0.0)} at the first one and is "
            f"{significant(scale or 0.0)} at step {window.facts.step:,}. No loss that was recorded "
            "at them is NaN. If a smaller scale ends this, begin with it.",
            FIX_START,
            calibrating=self._calibrating,
            scale_before=self._first_scale,
            scale=scale,
        )
        return about_steps(report, self._steps(window.facts.step))

    def _steps(self, step: int) -> range:
        """The skipped steps, if all since the first one were recorded."""
        return range(1 if step == self._calibrating else step, step + 1)

    def _origin(self) -> str:
        """Whether the loss or the scale is the reason, and what calibration is not counted."""
        if self._nan:
            where = (
                f"The loss was NaN at {counted(self._nan, 'skipped step')} of the run, which no "
                "loss scale changes: look at the loss and its data."
            )
        else:
            where = "No loss that was recorded at the skipped steps is NaN."
        if not self._calibrating:
            return where
        steps = counted(self._calibrating, "skipped step")
        verb = "is" if self._calibrating == 1 else "are"
        return f"{where} {steps} at the start, which calibrated the scale, {verb} not counted."
