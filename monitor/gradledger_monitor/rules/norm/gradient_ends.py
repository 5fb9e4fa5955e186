"""norm.gradient_ends"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradledger_monitor.model.findings import Doubt, Outcome
from gradledger_monitor.model.layers.combined import layers_of
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.norm.dead_layer import MOST_LISTED, names_of
from gradledger_monitor.rules.norm.layers import layers_by_rank, unmeasured
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.state import declare

IRREGULAR = -1  # in place of a count: the gradient ended and came back

FIX = """\
# after loss.backward(): what gets no gradient any more
for name, p in model.named_parameters():
    if p.requires_grad and (p.grad is None or not p.grad.any()):
        print(name, p.grad is None)
# a layer that should not be trained from here on: layer.requires_grad_(False)"""


class GradientEnds(Rule):
    """Layers had a gradient, and from some step on they have none other than 0.

    **What it sees**

    Layers that require a gradient and that the optimizer holds: they had a gradient at 5 sampled
    steps or more in a row, and have none, or one of 0, at the last 10, on all ranks, while another
    layer has one. These are steps 1, 2, 3, 5, 10 and every fifth one up to
    50, then about every tenth part of the steps so far.

    **Why it matters**

    The loss does not train these layers any more: a ``detach()``, ``no_grad()`` or another branch
    of the model separates them from it, or their outputs are 0 for every input. It is information,
    because a phase of the training may leave them out on purpose: a backbone that runs under
    ``no_grad()`` after some epochs, the head of an earlier task, an auxiliary loss that ends.

    **What to do**

    If they should be trained, look for what changed in the loop at these steps. If they should not,
    ``requires_grad_(False)`` states it.

    **When it is silent**

    Frozen parameters (``requires_grad`` is ``False``), also if they are frozen in mid-run; layers
    whose gradient was absent before and came back, such as layers
    that are dropped at random; an optimizer of which no parameter has a gradient (another rule).
    While fewer than 10 sampled steps follow, it is not measured.

    **Incidents**

    textbook (a ``detach()`` in a branch that is taken after some steps)
    """

    points_at = ("backward", "step")
    trained = Parameter(
        5, "sampled steps from the first one on at each of which a layer has a gradient"
    )
    needed = Parameter(10, "sampled steps in a row at each of which it has none")

    kind = "T"

    state = declare(_with=dict[str, int], _without=dict[str, int], _since=dict[str, int])

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._with: dict[str, int] = {}  # by layer, sampled steps with a gradient other than 0
        self._without: dict[str, int] = {}  # those without one since
        self._since: dict[str, int] = {}  # the first of these

    def evaluate(self, window: Window) -> Outcome:
        """The layers, at one of the few steps that measure them."""
        facts = window.facts
        ranks = layers_by_rank(facts)
        if ranks is None:
            return unmeasured(facts)
        if facts.missing_ranks:
            return not_measured(facts.missing_ranks)
        layers = [layer for rank in ranks.values() for layer in layers_of(rank)]
        active = {layer.name for layer in layers if layer.gradient}
        if not active:
            return self._unsettled() or OK
        absent = list(dict.fromkeys(layer.name for layer in layers if layer.name not in active))
        self._count(active, absent, facts.step)
        ended = [
            name
            for name in absent
            if self._with.get(name, 0) >= self.trained and self._without[name] >= self.needed
        ]
        return self._report(facts.optimizer_name, ended) if ended else self._unsettled() or OK

    def _unsettled(self) -> Outcome | None:
        """Whether a gradient has ended, which too few steps show by now."""
        names = [
            name
            for name, steps in self._without.items()
            if steps < self.needed and self._with.get(name, 0) >= self.trained
        ]
        if not names:
            return None
        since = min(self._since[name] for name in names)
        return Doubt(
            "not_measured",
            f"{names_of(names)} had no gradient other than 0 from step {since:,} on: needs "
            f"{counted(self.needed, 'sampled step')} from there",
        )

    def _count(self, active: set[str], absent: Sequence[str], step: int) -> None:
        names = active.union(absent)
        for name in self._with.keys() - names:  # frozen, or removed
            del self._with[name]
            self._forget(name)
        for name in active:
            absent_before = name in self._without
            self._forget(name)
            if absent_before and name in self._with:
                self._with[name] = IRREGULAR
            elif self._with.get(name) != IRREGULAR:
                self._with[name] = self._with.get(name, 0) + 1
        for name in absent:
            self._without[name] = self._without.get(name, 0) + 1
            self._since.setdefault(name, step)

    def _forget(self, name: str) -> None:
        self._without.pop(name, None)
        self._since.pop(name, None)

    def _report(self, optimizer: str, ended: Sequence[str]) -> Outcome:
        since = max(self._since[name] for name in ended)
        before = min(self._with[name] for name in ended)
        steps = min(self._without[name] for name in ended)
        one = len(ended) == 1
        return finding(
            "info",
            f"{counted(len(ended), 'layer')} {'has' if one else 'have'} no gradient any more",
            f"{names_of(ended)} had a gradient at {before:,} sampled steps in a row, and none "
            f"other than 0 at the last {steps:,}, from step {since:,} on. "
            f"{'It requires' if one else 'They require'} one, and {optimizer} holds "
            f"{'it' if one else 'them'}. A detach() or no_grad() may separate "
            f"{'it' if one else 'them'} from the loss, or units are dead; a phase of the training "
            "may intend it.",
            FIX,
            layers=list(ended[:MOST_LISTED]),
            since=since,
            sampled_steps_before=before,
            sampled_steps=steps,
        )
