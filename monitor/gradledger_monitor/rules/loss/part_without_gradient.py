"""loss.part_without_gradient"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from gradledger_monitor.ingest.schema import MicroBatch
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted, percent, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
# a part that should be trained: no .detach(), .item(), argmax or torch.no_grad() on its way
loss = main_loss + 0.5 * other_loss
assert other_loss.requires_grad"""

SAME = 1e-5  # relative difference of parts that are one constant: rounding of the loss


class PartWithoutGradient(Rule):
    """A part of the loss has no gradient, so nothing is trained on it.

    **What it sees**

    In the first 16 micro-batches: something is added to the losses of the graph that is not in the
    graph itself, at least 1% of the loss, and it changes from micro-batch to micro-batch. It is
    computed as the loss that backward starts from, minus the losses that the graph holds. At least
    8 micro-batches are needed.

    **Why it matters**

    The reported loss contains a part that training does not lower. A ``detach()``, ``item()``,
    ``argmax`` or ``no_grad()`` too many looks like a second objective in the log, and is none.

    It is information: a term that only makes the loss comparable, such as the entropy of the
    targets in a divergence, has no gradient on purpose.

    **What to do**

    Look at the statement that builds the loss. Compute the part from tensors that require a
    gradient, or leave it out of the loss and log it.

    **When it is silent**

    The part is a constant, such as a margin; the loss is not one that is computed again from what
    its node saved (cross entropy, binary errors, and squared and absolute ones, also by hand
    without a mask); checkpointing holds it.

    **Incidents**

    textbook (a reconstruction under no_grad)
    """

    points_at = ("loss", "backward")
    by_window = False
    needed = Parameter(8, "micro-batches")
    share = Parameter(0.01, "of the loss, from which a part is reported", most=1.0)

    state = declare(_parts=list[tuple[float, float]])

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._parts: list[tuple[float, float]] = []  # part and loss, without the loss scale

    def evaluate(self, window: Window) -> Outcome:
        """The part, of the first micro-batches of the lowest rank."""
        parts = [pair for _, m in window.facts.applied if (pair := _part_of(m)) is not None]
        self._parts += parts
        if not self._parts:
            return NONE
        if len(self._parts) < self.needed:
            return not_measured(
                f"needs a part without a gradient in {self.needed:g} of the first 16 micro-batches"
            )
        return self._compare()

    def _compare(self) -> Outcome:
        parts = [part for part, _ in self._parts]
        losses = [abs(loss) for _, loss in self._parts]
        usual = median(losses)
        varies = max(parts) - min(parts) > max(SAME * usual, self.share * median(map(abs, parts)))
        share = median(map(abs, parts)) / usual if usual else 0.0
        if share < self.share or not varies:
            return OK
        return finding(
            "info",
            "A part of the loss has no gradient",
            f"In the first {counted(len(parts), 'micro-batch')}, {percent(share)} of the loss "
            "came from numbers or detached tensors: between "
            f"{significant(min(parts))} and {significant(max(parts))}, where the loss was "
            f"{significant(usual)} in the median. Nothing is trained on this part.",
            FIX,
            share=share,
            smallest=min(parts),
            largest=max(parts),
            loss=usual,
        )


NONE = not_applicable("nothing without a gradient is added to the loss")


def _part_of(micro_batch: MicroBatch) -> tuple[float, float] | None:
    if micro_batch.without_gradient is None:
        return None
    part, loss = float(micro_batch.without_gradient), number(micro_batch.loss)
    if loss is None or not math.isfinite(part + loss):
        return None
    scale = number(micro_batch.scale) or 1.0
    return part / scale, loss / scale
