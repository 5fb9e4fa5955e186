"""loop.double_step"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.ingest.schema import Event
from gradledger_monitor.model.clipping import clip_coefficient
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.topology import steps_along
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.state import declare

FIX = """\
optimizer.step()             # once: remove the other call, or the helper that steps, too
optimizer.zero_grad()"""

FIX_SCALED = """\
scaler.step(optimizer)       # calls optimizer.step(): do not call it again
scaler.update()
optimizer.zero_grad()"""


class DoubleStep(Rule):
    """The optimizer steps twice on one gradient.

    **What it sees**

    A step with no backward since the previous one, on the same gradients, or on a multiple of
    them: clipping and unscaling multiply gradients by a number.

    **Why it matters**

    The update is applied twice: about twice the learning rate, and the moments of Adam count
    the gradient twice. The loss may even fall faster for a while.

    **What to do**

    Step once per window: look for a helper that also steps (a trainer, ``GradScaler.step``).

    **When it is silent**

    A backward runs between the steps; the optimizer is LBFGS, which runs its own backwards; a rank
    without data steps along with the others (``Join`` with ``ZeroRedundancyOptimizer``).

    **Incidents**

    pytorch/vision#4874, NVIDIA/physicsnemo#1911
    """

    points_at = ("step",)

    state = declare(_scaled=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._scaled = False  # a GradScaler has stepped

    def evaluate(self, window: Window) -> Outcome:
        """A repeated gradient."""
        record = window.facts.record
        self._scaled |= record.scaler is not None
        if record.micro_batches or record.skipped or record.empty:
            return OK
        facts = window.facts
        if not record.repeat or steps_along(facts.optimizer_name, facts.records):
            return OK
        return finding(
            "error",
            "The optimizer steps twice on one gradient",
            f"Step {window.facts.step} follows step {window.facts.step - 1} without a backward in "
            f"between, so the same gradients are applied twice{_changed(record.events)}.",
            FIX_SCALED if self._scaled else FIX,
            norm=number(record.norm),
        )


def _changed(events: list[Event]) -> str:
    unscaled = any(event.op == "unscale" for event in events)
    clipped = any(event.op == "clip_norm" and clip_coefficient(event) < 1 for event in events)
    ways = ["unscaled"] * unscaled + ["clipped"] * clipped
    return f", the second time {' and '.join(ways)}" if ways else ""
