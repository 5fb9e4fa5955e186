"""norm.lost_updates"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.norm.layers import layers_by_rank, unmeasured
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.schedule.rates import learning_rates
from gradledger_monitor.rules.state import declare

FIX = """\
# keep the parameters in float32, and compute in bfloat16
model = model.float()
with torch.autocast(device_type, dtype=torch.bfloat16):
    loss = loss_function(model(x), y)"""


class LostUpdates(Rule):
    """Updates are lost: they are too small for parameters in bfloat16 or float16.

    **What it sees**

    At all measured steps, 5 or more, at most 5% of the sampled coordinates of the parameters in
    half precision change, of those that have a gradient other than 0. Steps at which the learning
    rate rises, as in a warm-up, do not count. The optimizer is one of PyTorch's, which round each
    parameter to the nearest number.

    **Why it matters**

    Numbers in bfloat16 are 0.4% to 0.8% apart. An update below half of that leaves the parameter as
    it is, at each step again: small updates do not add up. The loss may fall for a while, because
    parameters close to 0, or with a large gradient, still change (P. Zamirai et al., "Revisiting
    BFloat16 training", 2020).

    **What to do**

    Keep the parameters in float32 and compute under ``torch.autocast``, keep a float32 copy of them
    for the optimizer, or use an optimizer with stochastic rounding or Kahan summation.

    **When it is silent**

    Once more coordinates change at one measured step: the rate may fall to 0 at the end, and the
    gradients as the model converges. Optimizers that are not PyTorch's, which may round at random.
    Parameters in float32, also if the model computes in half precision.

    **Incidents**

    textbook (a model in pure bfloat16 with the learning rate of fine-tuning)
    """

    needed = Parameter(5, "measured steps")
    lost = Parameter(0.95, "of the coordinates with a gradient that do not change", most=1.0)
    fewest = Parameter(64, "such coordinates")

    kind = "T"
    points_at = ("step",)

    state = declare(_measured=int, _rate=float, _moved=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._measured = 0  # steps at which nearly nothing changed
        self._rate = 0.0  # the highest learning rate at the measured steps
        self._moved = False  # at one of them more changed

    def evaluate(self, window: Window) -> Outcome:
        """The sampled coordinates of one of the few steps that measure them."""
        facts = window.facts
        ranks = layers_by_rank(facts)
        if ranks is None:
            return unmeasured(facts)
        coordinates = sum(layers.rounded for layers in ranks.values())
        if not coordinates:
            return not_applicable("no parameters in half precision that PyTorch's optimizer rounds")
        rate = max((number(value) or 0.0 for value in learning_rates(facts.record)), default=0.0)
        rises, self._rate = rate > self._rate > 0, max(self._rate, rate)
        if facts.record.skipped or not rate or rises or coordinates < self.fewest or self._moved:
            return OK
        share = sum(layers.unmoved for layers in ranks.values()) / coordinates
        self._moved = share < self.lost
        if self._moved:
            return OK
        self._measured += 1
        if self._measured < self.needed:
            return not_measured(f"needs {counted(int(self.needed), 'measured step')}")
        return finding(
            "warning",
            "Updates are too small for parameters in half precision",
            f"At all {counted(self._measured, 'measured step')} without a rising learning rate, at "
            f"least {self.lost:.0%} of the sampled coordinates that have a gradient did not "
            f"change. At step {facts.step:,}, with learning rates up to {significant(rate)}, these "
            f"were {share:.1%} of {coordinates:,}: the update is less than half the distance "
            "to the next number of their precision, and is rounded away.",
            FIX,
            unmoved=round(share, 4),
            coordinates=coordinates,
            lr=rate,
            measured_steps=self._measured,
        )
