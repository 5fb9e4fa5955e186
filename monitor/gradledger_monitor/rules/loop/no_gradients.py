"""loop.no_gradients"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import (
    ALSO_AT_THE_END,
    OK,
    Rule,
    Window,
    about_steps,
    finding,
    not_applicable,
    not_measured,
)
from gradledger_monitor.rules.state import declare

FIX = """\
held = {id(p) for group in optimizer.param_groups for p in group["params"]}
for name, p in model.named_parameters():     # after loss.backward()
    print(name, id(p) in held, p.requires_grad, p.grad is not None)"""


class NoGradients(Rule):
    """The optimizer steps although none of its parameters has a gradient.

    **What it sees**

    The first 3 steps of the only optimizer, or 20 later ones in a row, at each of which no
    backward has reached its parameters, and ``.grad`` of all of them is ``None``. One of several
    optimizers is reported by name, as information, if it has made 50 steps and never had a
    gradient, or 10 until the process ends.

    **Why it matters**

    Such a step changes nothing. The loss is still reported, and falls as little as a loss does
    that is not trained.

    **What to do**

    Compare the parameters that the optimizer holds with those of the model that you train: they
    may be those of a copy, or of a model before it was wrapped, moved or compiled. Look for
    ``detach()``, ``no_grad()``, ``.data`` and ``requires_grad_(False)`` between them and the loss.

    **When it is silent**

    One or two steps without a backward, as some loops have before the first schedule step; a
    loop that leaves out backwards for a while; several optimizers, of which one may wait (a GAN,
    a frozen backbone), unless it steps 50 times or the process ends; gradients that were zeroed
    before the step (another rule).

    **Incidents**

    textbook (an optimizer over the parameters of a copy)
    """

    first = Parameter(3, "first steps without a gradient that are reported")
    later = Parameter(20, "later steps in a row without a gradient that are reported")
    waits = Parameter(50, "first steps without a gradient of one of several optimizers")
    ended = Parameter(10, "of these, if no further step follows")

    points_at = ("step", "backward")
    inhibits = ("reduction.*", "norm.*", "loss.diverging")

    precondition = ALSO_AT_THE_END

    state = declare(_without=int, _had=bool, _trainable=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._without = 0  # steps in a row without a gradient
        self._had = False  # some step had one, or was not observed
        self._trainable = 0  # parameters that require one, at the last of these steps

    def after_gap(self) -> None:
        """The steps in between may have had gradients."""
        self._without, self._had = 0, True

    def evaluate(self, window: Window) -> Outcome:
        """Steps in a row at which no parameter has a gradient."""
        facts = window.facts
        record = facts.record
        if record.left_open is not None and facts.step > 1:
            return self._report(facts, facts.step - 1, has_ended=True) if self._without else OK
        if record.trainable is None:
            if record.empty and not record.micro_batches and not record.skipped:
                return not_measured("whether any parameter has a gradient was not recorded")
            self._without, self._had = 0, True
            return OK
        if any(each.trainable is None for each in facts.records.values()):
            return OK  # another rank has gradients: shards are spread unevenly
        self._without, self._trainable = self._without + 1, record.trainable
        return self._report(facts, facts.step)

    def _report(self, facts: StepFacts, last: int, *, has_ended: bool = False) -> Outcome:
        """The outcome after the last of the steps in a row; after a gap, they are counted anew."""
        if len(facts.run.optimizers) > 1:
            if self._had or self._without < (self.ended if has_ended else self.waits):
                return not_applicable(f"{facts.optimizer_label} may wait for another optimizer")
            report = self._one_of_several(facts)
        elif self._without < (self.later if self._had else self.first):
            return OK
        else:
            report = finding(
                "error",
                "The optimizer steps without gradients",
                f"None of the parameters of {facts.optimizer_name} had a gradient at the last "
                f"{counted(self._without, 'step')}: no backward reached them. "
                f"{_trainable(self._trainable)}",
                FIX,
                steps_without=self._without,
                trainable=self._trainable,
            )
        return about_steps(report, range(last - self._without + 1, last + 1))

    def _one_of_several(self, facts: StepFacts) -> Outcome:
        """It may wait for a phase that comes later."""
        label = facts.optimizer_label
        return finding(
            "info",
            f"{label} has never had a gradient",
            f"{label} has made {counted(self._without, 'step')}, and no backward has "
            f"reached its parameters. {_trainable(self._trainable)} It may wait for a later phase "
            "of the training. If not, these parameters are not trained.",
            FIX,
            steps_without=self._without,
            trainable=self._trainable,
        )


def _trainable(count: int) -> str:
    if not count:
        return "All of them are frozen (requires_grad is False)."
    verb = "requires" if count == 1 else "require"
    return f"{counted(count, 'parameter')} of it {verb} a gradient."
