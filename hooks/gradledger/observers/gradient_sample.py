"""Observes a few gradient coordinates: what the loop does to gradients after backward.

The sample (see ``gradient_probe``) is copied after every backward and before the step. The ratio
of these two copies is the post-backward factor ``a_r``: unscaling, scaling by hand and clipping,
multiplied.

A loop without a data-parallel wrapper may combine the gradients of the ranks before its last
backward. If collectives ran between two backwards, or inside the first (one may still run when it
ends), another copy is taken when the second begins: an all-reduce does not change the version of a
tensor, so that version marks cannot show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradledger.capture.gradient_probe import ABSENT, with_zeros
from gradledger.capture.open_records import OpenMicroBatch, OpenStep
from gradledger.observers import optimizer_steps
from gradledger.observers.base import Observer
from gradledger.observers.ranks.local_gradients import are_hooked, have_own_hooks

if TYPE_CHECKING:
    from gradledger.capture.windows import OptimizerWindow

OWN_STEP = "the optimizer may change the gradients in its step, before that of its base class"
UNASSIGNED = (
    "the gradients are in main_grad, and .grad is empty at the step: whether the optimizer applies "
    "them is not observed"
)
AFTER_ACCUMULATION = "what hooks of parameters do once a gradient accumulates is not known"
HOOKED = "hooks of the sampled parameters may scale their gradients before these are sampled"


class GradientSample(Observer):
    """Samples for ``post_factor``, ``zero_share``, ``noise``, ``sample_norm`` and ``repeat``."""

    facts = ("post_factor", "zero_share", "noise", "sample_norm")

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Sample gradients that collectives may have combined since the last backward."""
        between = bool(micro_batch.collectives_between)
        for window in micro_batch.marked_windows:
            last = window.micro_batches[-1] if window.micro_batches else None
            if last is None or window.fresh is not False or window.hidden_gradients:
                continue
            if between or last.sample_own is not None:
                window.sample_before = window.sample()

    def backward_ends(self, micro_batch: OpenMicroBatch, reached: list[OptimizerWindow]) -> None:
        """Sample the gradients that this backward added to."""
        for window in reached:
            # A window is emptied when its optimizer is dropped, which may happen at any time.
            if window.micro_batches and not window.hidden_gradients:
                counted = window.micro_batches[-1]
                counted.sample_after = window.sample()

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample what the optimizer is about to apply."""
        if step.update is not None:
            step.sample_at_step = step.update.gradient
            window.probe.release()
            return
        step.sample_at_step = window.sample_at_last_step = window.sample()
        window.probe.release()
        if window.probe.unassigned(window.probed_parameters):
            step.missing["post_factor"] = UNASSIGNED
        # otherwise the sample after backward shows what hooks do
        if not step.fields.get("before_hooks") and are_hooked(window.probed_parameters):
            step.hooked = HOOKED
        if window.may_idle and not window.outer_calls:
            step.hooked = OWN_STEP
        if step.micro_batches:
            last = step.micro_batches[-1]
            if last.sample_after is None and last.micro_batch.number == window.counted_number:
                last.sample_after = step.sample_at_step  # a step from a hook inside backward
            elif have_own_hooks(window.probed_parameters):
                step.missing["hooks"] = AFTER_ACCUMULATION
            if ABSENT in window.marks and last.sample_after is not None:
                gradients = list(map(window.probe.gradient_of, window.probed_parameters))
                step.filled = with_zeros(last.sample_after, window.marks, gradients)
        if optimizer_steps.steps_on_own_buffers(step, window):
            optimizer_steps.record_own_buffers(step, window)

    def step_ends(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample once more after a step that may change the gradients: most leave them."""
        if step.hooked == OWN_STEP and step.sample_at_step is not None:
            step.sample_after_own_step = window.sample()
            window.probe.release()
