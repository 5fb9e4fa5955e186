"""norm.vanishing"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.step_facts import StepFacts, clip_coefficient
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.state import declare

START = 3  # losses whose median stands for where the run began

FIX = """\
# look where it fades: norms by layer
for name, p in model.named_parameters():
    print(name, p.grad.norm())"""


class Vanishing(Rule):
    """The gradients fade away while the loss stays.

    **What it sees**

    The median norm, before clipping, of the last 20 steps is under a thousandth of the median of
    the first 20, and the loss has not fallen along: it is still above 90 % of what it was in the
    first three, or has risen again by at least half of what it had fallen. Needs 60 steps.

    **Why it matters**

    Nothing is learnt any more, at full cost.

    **What to do**

    Look at the learning-rate schedule, dead activations, a saturated loss, fp16 underflow.

    **When it is silent**

    The loss falls along: that is convergence.

    **Incidents**

    Lightning-AI/pytorch-lightning#9330 (a symptom)
    """

    span = Parameter(20, "steps of which a median is taken")
    needed = Parameter(60, "steps of history")
    share = Parameter(0.001, "of the early norm that is left", most=1.0)
    still = Parameter(0.9, "of the early loss that is left at least", most=1.0)

    kind = "T"
    works_on_metric_logs = True

    state = declare(
        _early=list[tuple[float, float]],
        _late=deque[tuple[float, float]],
        _best=float,
        _count=int,
        _faded=float | None,
        _clear=int,
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._early: list[tuple[float, float]] = []
        self._late: deque[tuple[float, float]] = deque(maxlen=self.span)
        self._best = math.inf  # lowest median loss of so many steps
        self._count = 0
        self._faded: float | None = None  # the norm under which it has, once that is known
        self._clear = 0  # norms in a row that were not under it

    def evaluate(self, window: Window) -> Outcome:
        """Median norm and loss, now against the beginning."""
        facts = window.facts
        norm, loss = _norm_before_clipping(facts), facts.loss_reported
        if facts.record.skipped or norm is None or loss is None or not math.isfinite(norm + loss):
            return not_measured("norm or loss was not seen")
        self._count += 1
        if len(self._early) < self.span:
            self._early.append((norm, loss))
        self._late.append((norm, loss))
        if self._count % self.span == 0:
            self._best = min(self._best, _medians(list(self._late))[1])
        if self._count < self.needed:
            return not_measured(f"{self.needed} steps are needed")
        if self._is_clear(norm):
            return OK
        early, late = _medians(self._early), _medians(list(self._late))
        early = early[0], median(loss for _, loss in self._early[:START])
        unlearnt = (early[1] + self._best) / 2
        if late[0] >= self.share * early[0] or late[1] < min(self.still * early[1], unlearnt):
            return OK
        return finding(
            "warning",
            "The gradients vanish",
            f"The median norm fell from {early[0]:.3g} to {late[0]:.3g}, while the loss went from "
            f"{early[1]:.4g} to {late[1]:.4g}.",
            FIX,
            norm_early=early[0],
            norm=late[0],
            loss_early=early[1],
            loss=late[1],
        )

    def _is_clear(self, norm: float) -> bool:
        """Whether each of the last norms is large enough, and so their median: most often."""
        if len(self._early) < self.span:
            return False
        if self._faded is None:
            self._faded = self.share * _medians(self._early)[0]
        self._clear = self._clear + 1 if norm >= self._faded else 0
        return self._clear >= self.span


def _norm_before_clipping(facts: StepFacts) -> float | None:
    """A limit that is far too low makes gradients small; they have not faded."""
    norm = facts.norm
    for event in facts.own_calls("clip_norm"):
        if norm is not None:
            norm /= clip_coefficient(event) or 1.0
    return norm


def _medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return median(norm for norm, _ in pairs), median(loss for _, loss in pairs)
