"""norm.exploding"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.circumstances import Onset
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.loss.common import OPPOSED, may_be_opposed
from gradledger_monitor.rules.norm.loss_weights import LossWeights
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.schedule.rates import learning_rates
from gradledger_monitor.rules.state import declare

FIX = """\
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
for group in optimizer.param_groups:
    group["lr"] /= 10                # before the first step: schedules start from it"""


# After each step. Noise that is correlated over time grows for as long as an explosion, and beyond
# its last 100 steps: in 2 of 500 drawn runs of 10,000 steps.
REMEMBERED = 0.999


class Exploding(Rule):
    """The gradient norm grows without bound.

    **What it sees**

    The norm has grown on each of 8 steps in a row, more than tenfold in all and to more than 3
    times the largest norm before, which counts 0.1% less after each step, and the loss has risen
    with it; or the norm stays above 10 times the largest norm of the first 100 steps for 10 steps.

    **Why it matters**

    The run diverges, and later steps increase the damage.

    **What to do**

    Lower the learning rate, lengthen the warm-up, or clip by norm.

    **When it is silent**

    The norm grows while the loss falls (early training of LoRA, warm-up); several optimizers train
    on different losses (a GAN). Once a parameter group is added, such as of a backbone that is
    unfrozen, or another loss, the next 100 steps are the first. Where a constant that multiplies a
    loss is raised, as in the annealing of a divergence, the largest norm before counts as often as
    the constant was raised by, up to the norm of that step and to 100,000 times in all.

    **Incidents**

    NVIDIA/Megatron-LM#1532
    """

    points_at = ("backward",)
    growing = Parameter(8, "steps of growth in a row that are reported")
    times = Parameter(10.0, "factor of growth that is reported")
    above = Parameter(3.0, "times the largest norm of the steps before the growth")
    early = Parameter(100, "first steps, whose largest norm is the reference")
    sustained = Parameter(10, "steps in a row far above the reference that are reported")

    kind = "T"
    works_on_metric_logs = True

    inhibits = ("norm.spike",)

    state = declare(
        _last=deque[tuple[float, float]],
        _before=float,
        _groups=int,
        _weights=LossWeights,
        _most=float,
        _count=int,
        _above=int,
        _grown=int,
        _onset=Onset,
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._last: deque[tuple[float, float]] = deque(maxlen=self.growing + 1)
        self._before = 0.0  # the largest norm before those, less 0.1% for each step since
        self._groups = 0  # parameter groups, whose norm it is
        self._weights = LossWeights()
        self._most = 0.0
        self._count = 0
        self._above = 0
        self._grown = 0  # steps in a row on each of which the norm has grown
        self._onset = Onset()  # what changed before the first report

    def after_gap(self) -> None:
        """Growth compares a step with the one before it."""
        self._last.clear()
        self._grown = 0

    def evaluate(self, window: Window) -> Outcome:
        """Growth on every step, or a norm far above that of the start for several steps."""
        facts = window.facts
        norm, loss = facts.norm, facts.loss_reported
        if facts.record.skipped or norm is None or loss is None or not math.isfinite(norm):
            return not_measured("no gradient norm or no loss")
        if may_be_opposed(facts):
            return OPPOSED
        groups = len(learning_rates(facts.record))
        rise = math.inf if groups != self._groups else 1.0
        rise = max(rise, self._weights.rise(facts, norm))
        if math.isinf(rise):
            # the norm is of other parameters or another loss: the next 100 are the first
            self._groups, self._count, self._most, self._above = groups, 0, 0.0, 0
        elif rise > 1:
            self._most = max(self._most, min(rise * self._most, norm))
        if rise > 1:
            self._grown = 0
            self._last.clear()
        self._count += 1
        self._grown = self._grown + 1 if self._last and norm > self._last[-1][0] else 0
        if len(self._last) > self.growing:
            self._before = max(REMEMBERED * self._before, self._last[0][0])
        self._last.append((norm, loss))
        if self._count <= self.early:
            self._most = max(self._most, norm)
        self._above = (
            self._above + 1 if self._count > self.early and norm > self.times * self._most else 0
        )
        if self._above < self.sustained and not self._grows():
            return OK
        if not self._onset.step:
            self._onset.note(window, within=self.sustained + self.growing)
        return self._report(norm, loss)

    def _report(self, norm: float, loss: float) -> Outcome:
        norm_before, loss_before = self._last[0]
        return finding(
            "warning",
            "The gradient norm explodes",
            f"The gradient norm went from {significant(norm_before)} to {significant(norm)} in "
            f"{counted(len(self._last) - 1, 'step')}, and the loss from "
            f"{significant(loss_before)} to {significant(loss)}.{self._excess()}"
            f"{self._onset.text}",
            FIX,
            norm=norm,
            norm_before=norm_before,
            loss=loss,
            loss_before=loss_before,
            **self._onset.evidence,
        )

    def _excess(self) -> str:
        if self._above < self.sustained:
            return ""
        return (
            f" The norm has been above {self.times:g} times the largest norm of the first "
            f"{counted(self.early, 'step')} for {counted(self._above, 'step')}."
        )

    def _grows(self) -> bool:
        """Whether the norm has grown on each step, by enough, and the loss with it."""
        if self._grown < self.growing:
            return False
        (first, loss_before), (last, loss) = self._last[0], self._last[-1]
        # Noise that is correlated over time grows for as long, within the range of the run.
        far = last > max(self.times * first, self.above * self._before)
        return far and not loss <= loss_before  # a NaN loss counts as risen
