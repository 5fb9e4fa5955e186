"""scaler.reset"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE
from gradledger_monitor.rules.state import declare

FIX = """\
scaler = torch.amp.GradScaler("cuda")           # once, before the first epoch
scaler.load_state_dict(checkpoint["scaler"])    # on resume"""


class Reset(Rule):
    """A new GradScaler replaces the previous one in mid-run.

    **What it sees**

    The optimizer is stepped through another ``GradScaler`` object than before, and the scale
    changes by more than a factor of 2. The same if a new optimizer of the same parameters comes
    with the new scaler: information, or a warning from the second time on. And information if the
    state of the optimizer is loaded before its first step, and that of its scaler is not.

    **Why it matters**

    The new scaler starts at its initial scale, and may overflow and skip steps until the scale
    settles. If this happens once per epoch, a few steps per epoch are lost.

    **What to do**

    Create one scaler per run. On resume, restore it with ``load_state_dict``.

    **When it is silent**

    One scaler for each optimizer from the start; the new scaler continues at the old scale; a new
    model with a new optimizer and a new scaler (the next fold or trial).

    **Incidents**

    conservationtechlab/animl-py#298, mosaicml/composer#1376, huggingface/accelerate#4289
    """

    points_at = ("scaler_step", "update")
    inhibits = ("scaler.skipped_steps",)

    precondition = SCALER_IN_USE

    state = declare(_before=tuple[int, float] | None)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._before: tuple[int, float] | None = None

    def after_gap(self) -> None:
        """The window before is missing: forget the last one that was evaluated."""
        self._before = None

    def evaluate(self, window: Window) -> Outcome:
        """Another scaler object, with another scale."""
        scaler = window.facts.record.scaler
        scale = None if scaler is None else number(scaler.scale)
        if scaler is None or scale is None:
            return OK
        before, self._before = self._before, (scaler.ordinal, scale)
        if before is None:
            return self._of_first_step(window, scaler.ordinal, scale)
        if not _is_reset(before, scaler.ordinal, scale):
            return OK
        return finding(
            "warning",
            "A new GradScaler replaces the previous one",
            "The optimizer steps through another GradScaler object, and the loss scale changes "
            f"from {significant(before[1])} to {significant(scale)}. It may skip steps until the "
            "scale settles again.",
            FIX,
            scale_before=before[1],
            scale=scale,
        )

    @staticmethod
    def _of_first_step(window: Window, ordinal: int, scale: float) -> Outcome:
        """A new optimizer, whose scaler is new, too."""
        record = window.facts.record
        if window.facts.step > 1:
            return OK  # after a gap: the step before is missing
        replaced, scaler = record.replaced, record.scaler
        earlier = None if replaced is None else replaced.scaler
        before = None if earlier is None else number(earlier.scale)
        if replaced is not None and earlier is not None and before is not None:
            if not _is_reset((earlier.ordinal, before), ordinal, scale):
                return OK
            return finding(
                "info" if earlier.ordinal == 1 else "warning",
                "A new optimizer and a new GradScaler replace the previous ones",
                f"{window.facts.optimizer_label} trains parameters that an earlier optimizer had "
                f"trained for {counted(replaced.steps, 'step')}, and steps through another "
                f"GradScaler object. The loss scale changes from {significant(before)} to "
                f"{significant(scale)}. It may skip steps until the scale settles again.",
                FIX,
                scale_before=before,
                scale=scale,
                steps_before=replaced.steps,
            )
        resumed = record.resumed  # some frameworks load the empty state of a new optimizer
        if scaler is None or scaler.loaded or resumed is None:
            return OK
        if not (resumed.trained or resumed.steps):
            return OK
        return finding(
            "info",
            "The optimizer is resumed without the state of its GradScaler",
            f"The state of {window.facts.optimizer_label} was loaded before its first step, and "
            f"that of its GradScaler was not. The scale starts at {significant(scale)}. It may "
            "skip steps until the scale settles again.",
            FIX,
            scale=scale,
        )


def _is_reset(before: tuple[int, float], ordinal: int, scale: float) -> bool:
    """Whether another scaler has another scale."""
    return before[0] != ordinal and not 0.5 <= scale / (before[1] or 1) <= 2
