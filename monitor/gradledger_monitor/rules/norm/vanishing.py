"""norm.vanishing"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

from gradledger_monitor.model.clipping import clip_coefficient
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.state import declare

START = 3  # first losses, whose median is the loss at the start

FIX = """\
# find the layers with small gradients
for name, p in model.named_parameters():
    print(name, p.grad.norm())"""


class Vanishing(Rule):
    """The gradients vanish while the loss does not fall.

    **What it sees**

    The median norm before clipping of the last 20 steps is below a thousandth of that of the
    first 20, and the loss has not fallen along: it is still above 90% of the median of the
    first three losses, or has risen again by at least half of its decrease. The rule needs 60
    steps.

    **Why it matters**

    The model no longer learns, at full cost.

    **What to do**

    Check the learning rate schedule, dead activations, a saturated loss, and fp16 underflow.

    **When it is silent**

    The loss falls along: the run converges.

    **Incidents**

    Lightning-AI/pytorch-lightning#9330 (a symptom)
    """

    points_at = ("backward",)
    span = Parameter(20, "steps over which medians are taken")
    needed = Parameter(60, "steps of history")
    share = Parameter(0.001, "share of the early norm below which gradients vanish", most=1.0)
    still = Parameter(0.9, "share of the early loss from which it has not fallen", most=1.0)

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
        self._best = math.inf  # lowest median loss of ``span`` steps
        self._count = 0
        self._faded: float | None = None  # the norm below which gradients vanish, once known
        self._clear = 0  # norms in a row that are not below it

    def evaluate(self, window: Window) -> Outcome:
        """Median norm and loss, against those of the start."""
        facts = window.facts
        norm, loss = _norm_before_clipping(facts), facts.loss_reported
        if facts.record.skipped or norm is None or loss is None or not math.isfinite(norm + loss):
            return not_measured("no gradient norm or no loss")
        self._count += 1
        if len(self._early) < self.span:
            self._early.append((norm, loss))
        self._late.append((norm, loss))
        if self._count % self.span == 0:
            self._best = min(self._best, _medians(list(self._late))[1])
        if self._count < self.needed:
            return not_measured(f"needs {counted(self.needed, 'step')}")
        return OK if self._is_clear(norm) else self._compare()

    def _compare(self) -> Outcome:
        """The medians of the last steps, against those of the start."""
        norm_early, loss_early = _medians(self._early)[0], _median_loss(self._early[:START])
        norm, loss = _medians(list(self._late))
        half_unlearnt = (loss_early + self._best) / 2
        if norm >= self.share * norm_early or loss < min(self.still * loss_early, half_unlearnt):
            return OK
        return finding(
            "warning",
            "The gradients vanish",
            f"The median gradient norm fell from {significant(norm_early)} to {significant(norm)}, "
            f"while the median loss went from {significant(loss_early)} to {significant(loss)}.",
            FIX,
            norm_early=norm_early,
            norm=norm,
            loss_early=loss_early,
            loss=loss,
        )

    def _is_clear(self, norm: float) -> bool:
        """Whether each of the last norms, and so their median, is large enough: the usual case."""
        if len(self._early) < self.span:
            return False
        if self._faded is None:
            self._faded = self.share * _medians(self._early)[0]
        self._clear = self._clear + 1 if norm >= self._faded else 0
        return self._clear >= self.span


def _norm_before_clipping(facts: StepFacts) -> float | None:
    """The norm without clipping: a low limit makes gradients small, but they do not vanish."""
    norm = facts.norm
    for event in facts.own_calls("clip_norm"):
        if norm is not None:
            norm /= clip_coefficient(event) or 1.0
    return norm


def _medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return median(norm for norm, _ in pairs), _median_loss(pairs)


def _median_loss(pairs: list[tuple[float, float]]) -> float:
    return median(loss for _, loss in pairs)
