"""norm.lost_updates"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.framework_fixes import with_optimizer
from gradledger_monitor.rules.norm.layers import layers_by_rank, unmeasured
from gradledger_monitor.rules.number_text import counted, percent, significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.schedule.rates import learning_rates
from gradledger_monitor.rules.state import declare

FIX = """\
# keep the parameters in float32, and compute in bfloat16
model = model.float()
with torch.autocast(device_type, dtype=torch.bfloat16):
    loss = loss_function(model(x), y)"""


FIX_SINGLE = """\
# a higher rate: float32 has 7 digits, and loses an update below 6e-8 of its parameter
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)"""

NO_COORDINATES = (
    "no parameters in half precision, or in float32 at a tiny learning rate, that PyTorch's "
    "optimizer rounds"
)
LOWERED = 0.5  # of the highest learning rate: below it, a schedule comes to its end


class LostUpdates(Rule):
    """Updates are lost: they are too small for the precision of the parameters.

    **What it sees**

    At all measured steps, 5 or more, at most 5% of the sampled coordinates of the parameters in
    half precision change, of those that have a gradient other than 0. Steps at which the learning
    rate rises, as in a warm-up, do not count. The optimizer is one of PyTorch's, which round each
    parameter to the nearest number.

    The same of parameters in float32, of which at most half change, if all learning rates are at
    most 1e-7 and at least half of the highest so far.

    **Why it matters**

    Numbers in bfloat16 are 0.4% to 0.8% apart, and those in float32 up to 1.2e-7 of their value. An
    update below half of that leaves the parameter as it is, at each step again: small updates do
    not add up. The loss may fall for a while, because parameters close to 0, or with a large
    gradient, still change (P. Zamirai et al., "Revisiting BFloat16 training", 2020).

    **What to do**

    Keep the parameters in float32 and compute under ``torch.autocast``, keep a float32 copy of them
    for the optimizer, or use an optimizer with stochastic rounding or Kahan summation. In float32,
    the learning rate is too small: print it as the optimizer has it.

    **When it is silent**

    Once more coordinates change at one measured step: the rate may fall to 0 at the end, and the
    gradients as the model converges. Optimizers that are not PyTorch's, which may round at random.
    Parameters in float32 at a usual learning rate, also if the model computes in half precision,
    or beside another parameter group with a usual one.

    **Incidents**

    textbook (a model in pure bfloat16 with the learning rate of fine-tuning; a learning rate of
    3e-10 where 3e-4 was meant)
    """

    needed = Parameter(5, "measured steps")
    lost = Parameter(0.95, "of the coordinates with a gradient that do not change", most=1.0)
    half = Parameter(0.5, "of them in float32, at a tiny learning rate", most=1.0)
    fewest = Parameter(64, "such coordinates")

    kind = "T"
    points_at = ("step",)

    state = declare(_measured=int, _rate=float, _moved=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._measured = 0  # steps at which nearly nothing changed
        self._rate = 0.0  # the highest learning rate so far
        self._moved = False  # at one of them more changed

    def evaluate(self, window: Window) -> Outcome:
        """The sampled coordinates of one of the few steps that measure them."""
        facts = window.facts
        rate = max((number(value) or 0.0 for value in learning_rates(facts.record)), default=0.0)
        rises, self._rate = rate > self._rate > 0, max(self._rate, rate)
        ranks = layers_by_rank(facts)
        if ranks is None:
            return unmeasured(facts)
        coordinates = sum(layers.rounded for layers in ranks.values())
        if not coordinates:
            return OK if self._measured else not_applicable(NO_COORDINATES)
        single = any(layers.single for layers in ranks.values())
        lost = self.half if single else self.lost
        if single and rate < LOWERED * self._rate:
            return OK
        if facts.record.skipped or not rate or rises or coordinates < self.fewest or self._moved:
            return OK
        share = sum(layers.unmoved for layers in ranks.values()) / coordinates
        self._moved = share < lost
        if self._moved:
            return OK
        self._measured += 1
        if self._measured < self.needed:
            return not_measured(f"needs {counted(int(self.needed), 'measured step')}")
        return finding(
            "warning",
            f"Updates are too small for parameters in {'float32' if single else 'half precision'}",
            f"At all {counted(self._measured, 'measured step')} without a rising learning rate, at "
            f"least {lost:.0%} of the sampled coordinates that have a gradient did not "
            f"change. At step {facts.step:,}, with learning rates up to {significant(rate)}, these "
            f"were {percent(share)} of {coordinates:,}: the update is less than half the distance "
            "to the next number of their precision, and is rounded away.",
            with_optimizer(FIX_SINGLE, facts.optimizer_name) if single else FIX,
            unmoved=round(share, 4),
            coordinates=coordinates,
            lr=rate,
            measured_steps=self._measured,
        )
