"""norm.vanishing_by_depth"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.layers.combined import LayersByRank, combined
from gradledger_monitor.model.layers.stacks import Stack, fall, stacks
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.norm.layers import layers_by_rank, unmeasured
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import (
    HISTORY,
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
# ReLU or GELU in hidden layers, not sigmoid; and weights that preserve the variance of signals:
for module in model.modules():
    if isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)
# or, in each block: x = x + block(norm(x))"""


class VanishingByDepth(Rule):
    """The gradient vanishes from the last layers to the first ones, which are hardly trained.

    **What it sees**

    Layers whose names differ in one number (``layers.0.up.weight``, ``layers.1.up.weight``), of one
    size, four or more. At each of the last 5 measured steps, their gradient RMS falls steadily
    (Kendall's tau of 0.8) from the last to the first one, to less than 1e-5, and the step changes
    the first one, relative to its parameters, by less than 1e-3 of what it changes the last one by.

    **Why it matters**

    The first layers keep the values that they were created with, and the others learn from what
    those happen to compute (Glorot and Bengio, "Understanding the difficulty of training deep
    feedforward neural networks", 2010).

    **What to do**

    Initialise for the activation, add residual connections or normalisation, and use no sigmoid in
    hidden layers.

    **When it is silent**

    Adaptive optimizers that make up for it; stacks in which a layer is frozen or has no gradient;
    biases; recurrent layers, whose steps in time share their weights.

    None of 510 healthy trainings of 17 kinds of models (deep and initialised, normalised,
    residual, attention, convolutions, recurrent and others) was reported. The gradient fell
    furthest, to 1.2e-3, in plain layers with normalisation. To repeat it, run
    ``python -m museum.courses.depth`` in ``tests/``.

    **Incidents**

    textbook (sigmoid layers, initial weights that are too small)
    """

    least = Parameter(4, "layers in a stack")
    steps = Parameter(5, "measured steps in a row")
    share = Parameter(1e-5, "gradient of the first layer over that of the last one", most=1.0)
    moved = Parameter(1e-3, "the same of the relative update", most=1.0)

    points_at = ("backward",)
    by_window = False

    state = declare(_in_a_row=list[int])

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._in_a_row: list[int] = []  # measured steps at which a gradient vanished

    def evaluate(self, window: Window) -> Outcome:
        """The stack in which the gradient falls furthest, at a step that measures the layers."""
        facts = window.facts
        ranks = layers_by_rank(facts)
        if ranks is None:
            return unmeasured(facts)
        return self._of_layers(facts, ranks)

    def _of_layers(self, facts: StepFacts, ranks: LayersByRank) -> Outcome:
        sharded = any(record.sharded for record in facts.records.values())
        if sharded and facts.missing_ranks:
            return not_measured(facts.missing_ranks)
        of_one_kind = stacks(combined(ranks, sharded), self.least)
        if not of_one_kind:
            return not_applicable(f"fewer than {self.least} layers of one kind follow each other")
        vanishing = [stack for stack in of_one_kind if self._vanishes(stack)]
        row = [*self._in_a_row, facts.step] if vanishing else []
        self._in_a_row = row[-max(self.steps, HISTORY) :]
        if not vanishing:
            return OK
        if len(self._in_a_row) < self.steps:
            return not_measured(f"needs {counted(self.steps, 'measured step')} in a row")
        furthest = min(vanishing, key=lambda stack: fall(stack) or 0.0)
        return about_steps(_report(furthest, len(self._in_a_row)), self._in_a_row)

    def _vanishes(self, stack: Stack) -> bool:
        share, first, last = fall(stack), stack[0].ratio, stack[-1].ratio
        if share is None or share >= self.share or first is None or not last:
            return False
        return first < self.moved * last


def _report(stack: Stack, steps: int) -> Outcome:
    first, last = stack[0], stack[-1]
    return finding(
        "warning",
        "The gradient vanishes towards the first layers",
        f"At each of the last {counted(steps, 'measured step')}, the gradient falls over "
        f"{counted(len(stack), 'layer')}: its RMS is now {last.gradient:.2g} in {last.name} and "
        f"{first.gradient:.2g} in {first.name}. Relative to its parameters, the step changed the "
        f"last one by {last.ratio:.2g} and the first one by {first.ratio:.2g}.",
        FIX,
        first=first.name,
        last=last.name,
        layers=len(stack),
        gradients=[layer.gradient for layer in stack[:64]],
        updates=[layer.ratio for layer in stack[:64]],
        measured_steps=steps,
    )
