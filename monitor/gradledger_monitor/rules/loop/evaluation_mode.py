"""loop.evaluation_mode"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable
from gradledger_monitor.rules.state import declare

DROPOUT = "Dropout"  # what the names of its classes contain, also of AlphaDropout

FIX = """\
model.eval()
with torch.no_grad():
    validate(model)
model.train()    # before the next training step
# batch norm that should stay frozen: after model.train(), eval() of these modules alone"""


FIX_FROM_START = """\
model.train()    # before the first training step: from_pretrained() and eval() leave it off
# if nothing should be dropped: a probability of 0"""


class EvaluationMode(Rule):
    """The model was in training mode, and training goes on in evaluation mode.

    **What it sees**

    At sampled steps, the mode of the modules of the model that compute something else in evaluation
    mode: dropout with a probability above 0, and batch norm with running statistics. They were in
    training mode at 2 sampled steps or more, and all of them, with the whole model, in evaluation
    mode in the backwards of the last 3; of the last 5 if they were in training mode at one alone,
    as at the only step of the first epoch. These are steps 1, 2, 3, 5, 10 and every fifth one up to
    50, then about every tenth part of the steps so far. Or the whole model, with a dropout in it,
    was in evaluation mode at all sampled steps, at least 5: this is information, as it may be
    intended.

    **Why it matters**

    Dropout drops nothing in evaluation mode, so the model is not regularised any more. Batch norm
    divides by its running statistics, and does not update them, although the activations change.

    It is a warning if dropout is among them, and information if it is batch norm alone, which some
    fine-tuning freezes in this way, or after one sampled step in training mode alone: one step may
    be a trial before a fine-tuning without dropout.

    **What to do**

    Call ``model.train()`` after each validation, before the next training step.

    **When it is silent**

    Batch norm alone in evaluation mode from the first step on; a part of the model in evaluation
    mode, such as a backbone whose batch norm is frozen; one of several models in evaluation mode,
    beside one in training mode; a mode that changes between backward and step; models without such
    modules, or that are not known.

    **Incidents**

    textbook (``model.eval()`` before a validation, without ``model.train()`` after it)
    """

    before = Parameter(2, "sampled steps in training mode")
    needed = Parameter(3, "sampled steps in a row in evaluation mode")
    from_start = Parameter(5, "sampled steps, all in evaluation mode")

    kind = "T"
    points_at = ("step", "backward")

    state = declare(_trained=int, _last_trained=int, _evaluated=int, _since=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._trained = 0  # sampled steps in training mode
        self._last_trained = 0  # the latest of them
        self._evaluated = 0  # sampled steps in evaluation mode since
        self._since = 0  # the first of them

    def evaluate(self, window: Window) -> Outcome:
        """The modes in the record of the lowest rank."""
        layers, step = window.facts.record.layers, window.facts.step
        if layers is None or not (layers.training or layers.evaluating):
            return not_applicable("no mode of dropout or batch norm was read at this step")
        if layers.training:
            self._trained, self._last_trained, self._evaluated = self._trained + 1, step, 0
            return OK
        self._since = self._since if self._evaluated else step
        self._evaluated += 1
        kinds = layers.evaluating
        if not self._trained and self._evaluated >= self.from_start and _drops(kinds):
            return _never_trained(kinds, self._evaluated)
        if not self._trained or self._evaluated < self._enough():
            return OK
        last = self._last_trained
        trained = f"sampled steps up to {last:,}" if self._trained > 1 else f"step {last:,}"
        return finding(
            "warning" if _drops(kinds) and self._trained >= self.before else "info",
            "Training goes on in evaluation mode",
            f"{' and '.join(kinds)} of the model {'was' if len(kinds) == 1 else 'were'} in "
            f"training mode at {trained}. The whole model was in "
            f"evaluation mode at the {counted(self._evaluated, 'sampled step')} from step "
            f"{self._since:,} on. A validation may have called model.eval(), without model.train() "
            "after it.",
            FIX,
            trained_until=last,
            evaluation_since=self._since,
            sampled_steps=self._evaluated,
            modules=kinds,
        )

    def _enough(self) -> int:
        """Sampled steps in evaluation mode that show it, after as many in training mode.

        One alone is that of the first epoch, if that has one step.
        """
        return self.needed if self._trained >= self.before else max(self.needed, self.from_start)


def _drops(kinds: list[str]) -> bool:
    return any(DROPOUT in kind for kind in kinds)


def _never_trained(kinds: list[str], sampled: int) -> Outcome:
    return finding(
        "info",
        "The model is trained in evaluation mode",
        f"The whole model was in evaluation mode at all {counted(sampled, 'sampled step')}, and "
        f"{' and '.join(kinds)} in it {'does' if len(kinds) == 1 else 'do'} not act as in "
        "training: dropout drops nothing. If this is intended, it is right.",
        FIX_FROM_START,
        sampled_steps=sampled,
        modules=kinds,
    )
