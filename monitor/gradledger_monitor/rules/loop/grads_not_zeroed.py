"""loop.grads_not_zeroed"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, UNSTABLE
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
optimizer.step()
optimizer.zero_grad(set_to_none=True)"""

FIX_APART = """\
# to step on each micro-batch alone:
optimizer.step()
optimizer.zero_grad(set_to_none=True)
# to accumulate K micro-batches, each loss divided by K:
if (i + 1) % K == 0:
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)"""

FIX_BEFORE = """\
# at the start of the closure, if step() takes one; else
# before this optimizer's first backward of a window, after those of other losses:
optimizer.zero_grad(set_to_none=True)"""

FIX_BETWEEN = """\
# The backward of the other loss comes after the one of this optimizer. Step this optimizer before
# it, or keep its gradients out of these parameters: requires_grad_(False) during that forward."""


class GradsNotZeroed(Rule):
    """Gradients of the last window are still present when the next one begins.

    **What it sees**

    The gradients are neither absent nor zero when the first backward of a window starts, and
    nothing clears them before the step; or the step applies gradients of a backward on which
    another optimizer has already stepped; or a closure that an optimizer evaluates several times
    in a step adds to the gradients of the evaluation before.

    **Why it matters**

    If gradients are not zeroed, every step applies the sum of all earlier gradients, like a
    momentum of 1. Gradients of another loss pull the parameters towards a different objective.

    **What to do**

    Call ``optimizer.zero_grad()`` after each step, for every optimizer whose parameters
    received gradients. If the gradients are zeroed at every K-th step alone, an accumulation may be
    meant: then step where they are zeroed.

    **When it is silent**

    The gradients are cleared before they are used (the discriminator of a GAN); the
    ``GradScaler`` skipped the step; two optimizers step on the same loss at different intervals;
    each loss of the window has a separate optimizer beside this one, as the heads of a trunk.

    **Incidents**

    karpathy/llm.c#548, Hsintien-Ng/idinvert_pytorch-reproduced#1, pytorch/pytorch#47175
    """

    points_at = ("step", "zero_grad", "backward")
    inhibits = UNSTABLE

    state = declare(_skipped=bool, _steps=int, _apart=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._skipped = False
        self._steps = 0  # of one micro-batch each, since gradients were last zeroed; 0: not known
        self._apart = 0  # such steps from one time to the next, the last two times

    def after_gap(self) -> None:
        """The missing step may have been skipped."""
        self._skipped = True
        self._steps = 0

    def evaluate(self, window: Window) -> Outcome:
        """Old gradients before the first applied backward, or an already stepped backward."""
        facts = window.facts
        skipped, self._skipped = self._skipped, facts.record.skipped
        if facts.record.skipped or not facts.applied:
            self._steps = 0
            return not_applicable("no gradients of this window were applied")
        first = facts.applied[0][1]
        if first.fresh is None:
            return not_measured("the gradients before the window were not recorded")
        leaked = facts.leaked
        self._count(facts, bool(first.fresh))
        if facts.record.closure and facts.parameters_changed:
            title = "Gradients are not zeroed in the closure"
            return self._finding(facts, title, EVALUATIONS, FIX_BEFORE)
        if (first.fresh or skipped) and not leaked:
            return OK
        if leaked:
            summary = _leaked(len(leaked), len(leaked) + len(facts.applied))
            if facts.record.micro_batches[0].fresh is False and not skipped:
                summary += ALSO_NOT_ZEROED
            title = "Gradients of another loss leak into the step"
            fix = FIX_BETWEEN if max(leaked) > facts.applied_from else FIX_BEFORE
            return self._finding(facts, title, summary, fix)
        title = "Gradients are not zeroed between steps"
        if self._apart > 1 and self._steps > 1:
            return self._finding(facts, title, NOT_ZEROED + _accumulation(self._apart), FIX_APART)
        return self._finding(facts, title, NOT_ZEROED, FIX_BEFORE if facts.record.closure else FIX)

    def _count(self, facts: StepFacts, fresh: bool) -> None:
        """Count the steps from one time that gradients are zeroed to the next."""
        if facts.micro_batches != 1 or facts.record.closure:
            self._steps = self._apart = 0
        elif fresh:
            self._apart, self._steps = self._steps, 1
        elif self._steps:
            self._steps += 1

    @staticmethod
    def _finding(facts: StepFacts, title: str, summary: str, fix: str = FIX) -> Outcome:
        return finding(
            "error",
            title,
            summary,
            fix,
            leaked_micro_batches=[index + 1 for index in facts.leaked][:32],
            norm=number(facts.record.norm),
        )


EVALUATIONS = (
    "The optimizer evaluates its closure several times in a step, and changes the parameters in "
    "between. The gradients of each evaluation are added to those of the ones before."
)
NOT_ZEROED = (
    "The window begins with gradients that are neither absent nor zero, so the step also applies "
    "gradients from before the last step."
)
ALSO_NOT_ZEROED = " The window also begins with gradients from before the last step."


def _accumulation(steps: int) -> str:
    return (
        f" The last two times that they were zeroed are {steps} steps apart, and each step follows "
        f"1 micro-batch. If an accumulation over {steps} micro-batches is meant, the optimizer "
        "should step only where they are zeroed."
    )


def _leaked(stepped: int, applied: int) -> str:
    return (
        f"Another optimizer has already stepped on {stepped} of the {applied} backwards of this "
        f"window. {'Its' if stepped == 1 else 'Their'} gradients are still in the parameters of "
        "this optimizer, which applies them, too."
    )
