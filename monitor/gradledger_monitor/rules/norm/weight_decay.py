"""norm.weight_decay"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.layers.combined import Layer, combined
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.framework_fixes import with_optimizer
from gradledger_monitor.rules.loss.common import OPPOSED, may_be_opposed
from gradledger_monitor.rules.norm.layers import layers_by_rank, unmeasured
from gradledger_monitor.rules.number_text import counted, percent, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
# AdamW subtracts lr * weight_decay * p; Adam and SGD add weight_decay * p to the gradient
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)"""

FIX_COUPLED = """\
# weight_decay * p is added to the gradient: it must be far smaller than that
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-4)"""


class WeightDecay(Rule):
    """Weight decay outweighs the gradient, and the model shrinks instead of learning.

    **What it sees**

    At each of the last 5 measured steps, over all layers that decay: what weight decay adds to
    the gradient (``weight_decay * p``, SGD and Adam) has a larger norm than the gradient; or, for
    AdamW, it makes more than half of the squared update (``lr * weight_decay * p``). Meanwhile the
    norm of these parameters has fallen to less than half of that of the first measured step, and
    the loss has not fallen: the median of the last 10 is above 90% of that of the first 3, or has
    risen back by at least half of its decrease.

    **Why it matters**

    The parameters tend to zero, and the model to a constant. The loss is still reported.

    **What to do**

    Lower ``weight_decay``: 0.01 to 0.1 for AdamW, and 1e-5 to 1e-3 for SGD and Adam, which add it
    to the gradient, so that gradients that are small, clipped or averaged lose against it. Use
    AdamW if a recipe has ``weight_decay=0.1``.

    **When it is silent**

    The loss falls along, as in training with strong regularisation; parameters that keep their
    size; an optimizer that is not one of PyTorch's, or whose learning rate is a tensor on a device;
    several optimizers that train on different losses (a GAN).

    **Incidents**

    textbook (the weight decay of AdamW, given to Adam)
    """

    needed = Parameter(5, "measured steps in a row")
    coupled = Parameter(1.0, "times the norm of the gradient")
    decoupled = Parameter(0.5, "share of the squared update", most=1.0)
    shrunk = Parameter(0.5, "of the norm of the first measured step, from which they have shrunk")
    still = Parameter(0.9, "share of the early loss from which it has not fallen", most=1.0)

    kind = "T"
    points_at = ("step", "backward")
    inhibits = ("norm.vanishing", "norm.vanishing_by_depth", "norm.dead_layer")

    state = declare(
        _in_a_row=int,
        _size=float,
        _early=list[float],
        _late=deque[float],
        _best=float,
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._in_a_row = 0  # measured steps at which decay outweighs
        self._size = 0.0  # norm of the parameters that decay, at the first measured step
        self._early: list[float] = []  # first losses
        self._late: deque[float] = deque(maxlen=LATE)
        self._best = math.inf  # lowest median of the last ones

    def evaluate(self, window: Window) -> Outcome:
        """Decay, gradient, size and loss, at one of the few steps that measure the layers."""
        facts = window.facts
        self._add_loss(facts.loss_reported)
        ranks = layers_by_rank(facts)
        if ranks is None:
            return unmeasured(facts)
        if may_be_opposed(facts):
            return OPPOSED
        first = next(iter(ranks.values()))
        if not first.decay:
            return not_applicable("no weight decay, or how the optimizer applies it is not known")
        sharded = any(record.sharded for record in facts.records.values())
        if sharded and facts.missing_ranks:
            return not_measured(facts.missing_ranks)
        forces = _forces(combined(ranks, sharded), first.decoupled)
        if forces is None:
            return not_measured("no update or gradient of a layer that decays was measured")
        self._size = self._size or forces.size
        limit = math.sqrt(self.decoupled) if first.decoupled else self.coupled
        outweighs = forces.decay > limit * forces.other and forces.size < self.shrunk * self._size
        self._in_a_row = self._in_a_row + 1 if outweighs and self._has_not_fallen() else 0
        if not self._in_a_row:
            return OK
        if self._in_a_row < self.needed:
            return not_measured(f"needs {counted(self.needed, 'measured step')} in a row")
        return self._report(forces, first.decoupled, facts)

    def _add_loss(self, loss: float | None) -> None:
        if loss is None or not math.isfinite(loss):
            return
        if len(self._early) < EARLY:
            self._early.append(loss)
        self._late.append(loss)
        if len(self._late) == LATE:
            self._best = min(self._best, median(self._late))

    def _has_not_fallen(self) -> bool:
        if len(self._late) < LATE:
            return False
        start, now = median(self._early), median(self._late)
        return now >= min(self.still * start, (start + self._best) / 2)

    def _report(self, forces: _Forces, decoupled: bool, facts: StepFacts) -> Outcome:
        name = facts.optimizer_name
        times = forces.decay / forces.other if forces.other else math.inf
        share = min(1.0, times * times)
        what = (
            f"it made {percent(share)} of the squared update"
            if decoupled
            else f"what it adds to the gradient was {significant(times)} times as large as the "
            "gradient itself"
        )
        return finding(
            "warning",
            "Weight decay outweighs the gradient",
            f"At {counted(self._in_a_row, 'measured step')} in a row, weight decay outweighed the "
            f"gradient; at the last of them, step {facts.step:,}, {what}. The norm of the "
            f"parameters that decay fell from {significant(self._size)} to "
            f"{significant(forces.size)}, while "
            f"the median of the loss went from {significant(median(self._early))} at the first "
            f"{len(self._early)} steps to {significant(median(self._late))} at the last "
            f"{len(self._late)}.",
            FIX if decoupled or "Adam" in name else with_optimizer(FIX_COUPLED, name),
            norm_of_parameters_before=self._size,
            norm_of_parameters=forces.size,
            loss_early=median(self._early),
            loss=median(self._late),
            measured_steps=self._in_a_row,
            # decoupled, it contains the learning rate
            **{"decay_per_step" if decoupled else "weight_decay": forces.factor},
        )


EARLY, LATE = 3, 10  # losses whose medians are compared


class _Forces(NamedTuple):
    """Norms over all layers that decay."""

    decay: float  # what weight decay adds to the gradient, or subtracts from the parameters
    other: float  # the gradient without it, or the whole update
    size: float  # of the parameters
    factor: float  # the largest factor of weight decay


def _forces(layers: Sequence[Layer], decoupled: bool) -> _Forces | None:
    measured = [
        (layer, other)
        for layer in layers
        if layer.decay
        and layer.parameter is not None
        and (other := layer.update if decoupled else layer.gradient) is not None
        and math.isfinite(other)
    ]
    if not measured:
        return None
    roots = [math.sqrt(layer.size) for layer, _ in measured]  # from an RMS to a norm
    parameters = [(layer.parameter or 0.0, layer.decay) for layer, _ in measured]
    return _Forces(
        math.hypot(*(r * d * p for r, (p, d) in zip(roots, parameters, strict=True))),
        math.hypot(*(r * other for r, (_, other) in zip(roots, measured, strict=True))),
        math.hypot(*(r * p for r, (p, _) in zip(roots, parameters, strict=True))),
        max(d for _, d in parameters),
    )
