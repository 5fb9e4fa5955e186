"""loop.optimizer_recreated"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.framework_fixes import with_optimizer
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.state import declare

FIX = """\
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)   # once, before all loops
for epoch in range(epochs):
    for x, y in loader:
        ...
# another learning rate: by a scheduler, or in optimizer.param_groups"""


class OptimizerRecreated(Rule):
    """A new optimizer replaces the previous one again and again, and its averages are lost.

    **What it sees**

    Five optimizers in a row over the same parameters, of the same class and with the same settings
    besides the learning rate, each in place of one that had made the same number of steps. The last
    four began with an empty state, although the one before had averages of its gradients (momentum,
    Adam's moments), and nothing else had changed the parameters since.

    **Why it matters**

    What the optimizer averages over the last gradients begins anew each time: the first step of
    Adam is the sign of one gradient, and the first ones with a momentum are too small. It is a
    warning if each made at most a tenth of the steps that its longest average reaches back (1,000
    for Adam with a beta of 0.999, 10 for a momentum of 0.9). Otherwise it is information: the state
    has time to settle.

    **What to do**

    Create the optimizer once, before the loop over epochs or batches. To change the learning rate,
    set it in ``optimizer.param_groups``. If each optimizer is meant for another task or phase,
    disable the rule for the run.

    **When it is silent**

    Fewer optimizers in a row; another class, setting or set of parameters, as where layers are
    unfrozen; other numbers of steps; a state that is loaded or copied; parameters that are loaded
    or reset in between (cross-validation, federated rounds); SGD without a momentum.

    **Incidents**

    textbook (an optimizer that is created inside the loop over epochs)
    """

    points_at = ("step",)
    needed = Parameter(4, "optimizers in a row that lost the state of the one before")
    short = Parameter(0.1, "of the steps that the longest average reaches back", most=1.0)

    state = declare(_steps=int, _horizon=float)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._steps = 0  # of each of those before, if this is the one with which there are as many
        self._horizon = 0.0

    def evaluate(self, window: Window) -> Outcome:
        """At the steps of the optimizer with which there are as many: once in a run."""
        replaced = window.facts.record.replaced
        if replaced is not None and replaced.in_a_row == self.needed:
            horizon = number(replaced.horizon) or 0.0
            self._horizon = horizon if math.isfinite(horizon) else 0.0
            self._steps = replaced.steps
        return self._report(window.facts.optimizer_name, self._steps) if self._steps else OK

    def _report(self, name: str, steps: int) -> Outcome:
        horizon = self._horizon
        short = steps <= self.short * horizon
        often = "at every step" if steps == 1 else f"every {counted(steps, 'step')}"
        reach = ""
        if horizon:
            reach = f" By its factor, the longest reaches back {counted(round(horizon), 'step')}."
        return finding(
            "warning" if short else "info",
            f"A new {name} replaces the previous one {often}",
            f"{self.needed + 1} optimizers in a row stepped the same parameters with the same "
            f"settings besides the learning rate, each in place of one that had made "
            f"{counted(steps, 'step')}. The last {self.needed} began with an empty state, and the "
            f"averages of the gradients that the one before had were lost.{reach} If each of them "
            "is another phase, such as a task, this may be intended.",
            with_optimizer(FIX, name),
            optimizers=self.needed + 1,
            steps_of_each=steps,
            horizon=round(horizon) or None,
        )
