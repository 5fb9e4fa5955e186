"""ddp.wrong_model_average"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Doubt, Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.exchange import model_average
from gradledger_monitor.model.ranks.mixtures import adds_changes_up, changes_of
from gradledger_monitor.model.ranks.topology import NORMALISED
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.tolerances import WEIGHT_HALF
from gradledger_monitor.rules.ddp.common import SEVERAL_RANKS
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable
from gradledger_monitor.rules.state import declare

REPEATED = 2  # times in a row: one factor may be that of an outer momentum's first step
SUBTRACT = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad")  # the gradient

FIX = """\
for parameter in model.parameters():
    torch.distributed.all_reduce(parameter.data)
    parameter.data /= torch.distributed.get_world_size()    # once"""

MAY_DECAY = (
    "the parameters become {} times the average of the ranks' parameters each time: whether a "
    "decay is meant is not known"
)

FIX_OUTER = """\
for parameter in outer_parameters:      # parameter.grad: before - after the local steps
    torch.distributed.all_reduce(parameter.grad)
    parameter.grad /= torch.distributed.get_world_size()    # once
outer_optimizer.step()"""


class WrongModelAverage(Rule):
    """The ranks combine their models by a sum instead of an average, or divide it twice; or an
    outer step has the wrong sign.

    **What it sees**

    Ranks that take local steps, and then set their parameters to R times or 1/R times the average
    over the R ranks, or twice in a row to another multiple above 1 (local SGD); or an outer
    optimizer that steps on the sum of the changes of all ranks (DiLoCo), with a learning rate above
    1/R, or on what the local steps added, which an optimizer subtracts. A warning: twice in a row,
    the models become the one from which they started plus the sum of the changes of all ranks.

    **Why it matters**

    Parameters that are added up are R times too large, and training starts from a useless model
    after each combination. Another factor is applied again each time. An outer step on a sum goes R
    times as far as intended. One with the wrong sign undoes the local steps, and goes on in the
    opposite direction.

    **What to do**

    Divide the sum over the ranks by their number, once. The outer gradient is the parameters before
    the local steps, minus those after them.

    **When it is silent**

    The parameters become the same multiple below 1 twice in a row, which may be a decay (not
    measured). The average is weighted, compressed or over groups of ranks; the models of the ranks
    are equal; an outer learning rate of at most 1/R, which may stand for the division.

    **Incidents**

    textbook (no single report)
    """

    points_at = ("step",)

    precondition = SEVERAL_RANKS
    state = declare(_multiple=float, _earlier=list[list[float]], _added_up=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._multiple = 0.0  # of the average, that the parameters became the last time
        self._earlier: list[list[float]] = []  # of the last equal models: see ``changes_of``
        self._added_up = 0  # times in a row in which the changes of all ranks were added up

    def evaluate(self, window: Window) -> Outcome:
        """What the ranks made of their models, as a multiple of the average."""
        facts = window.facts
        excess = None if facts.missing_ranks else model_average(facts.records)
        if self._adds_up(facts):
            return _of_changes(len(facts.records))
        if excess is None:
            return not_applicable("the ranks were not seen to combine their parameters")
        ranks = len(facts.records)
        tolerance = WEIGHT_HALF  # of models that are sent in half precision
        summed = abs(excess / ranks - 1) <= tolerance
        if _is_outer(facts):
            rate = number(facts.record.lr) or 0.0
            if excess < 0 < rate and facts.optimizer_name in SUBTRACT:
                return self._away(excess, rate)
            return self._outer(ranks, rate, excess) if summed and rate * ranks > 1 else OK
        if summed:
            return finding(
                "error",
                f"The ranks' parameters are added up: {ranks} times too large",
                f"Before this step, the parameters became the sum of the parameters of {ranks} "
                "ranks, not their average.",
                FIX,
                times_average=round(excess, 6),
            )
        if abs(excess * ranks - 1) <= tolerance:
            return finding(
                "error",
                f"The average of the ranks' parameters is divided again: {ranks} times too small",
                "Before this step, the parameters became the average over the ranks, divided by "
                f"the number of ranks ({ranks}) once more.",
                FIX,
                times_average=round(excess, 6),
            )
        # Once, it may be an outer step of parameters that began at zero; a factor that changes, a
        # norm to which the loop scales them.
        last, self._multiple = self._multiple, excess
        if abs(excess - 1) <= tolerance or abs(excess - last) > tolerance:
            return OK
        times = significant(excess)
        if excess < 1:
            return Doubt("not_measured", MAY_DECAY.format(times))
        return finding(
            "error",
            f"The parameters become {times} times the average of the ranks' parameters",
            f"Before this step, the parameters became the average over {ranks} ranks, "
            f"multiplied by {times}.",
            FIX,
            times_average=round(excess, 6),
        )

    def _adds_up(self, facts: StepFacts) -> bool:
        """Whether the models have become the sum of their changes, as they did the last time."""
        exchange = facts.exchange
        if exchange is None or not (exchange.equal and exchange.whole):
            return False
        before, row = exchange.before, exchange.after[0]
        added_up = adds_changes_up(before, row, self._earlier)
        self._earlier = changes_of(before, row, self._earlier)
        self._added_up = self._added_up + 1 if added_up else 0
        return self._added_up >= REPEATED and not _divided_by_all(facts)

    @staticmethod
    def _away(excess: float, rate: float) -> Outcome:
        return finding(
            "error",
            "The outer step moves the model away from the ranks' models",
            "The gradient of the outer optimizer has the direction in which the ranks' models "
            "moved in their local steps. The optimizer subtracts it, with the learning rate "
            f"{significant(rate)}, so the outer step goes the opposite way.",
            FIX_OUTER,
            times_average=round(excess, 6),
            learning_rate=rate,
        )

    @staticmethod
    def _outer(ranks: int, rate: float, excess: float) -> Outcome:
        return finding(
            "error",
            f"The outer step adds up the ranks' changes: {ranks} times too large",
            f"The outer optimizer steps on the sum of the changes of {ranks} ranks, not on their "
            f"average, with the learning rate {significant(rate)}.",
            FIX_OUTER,
            times_average=round(excess, 6),
            learning_rate=rate,
        )


def _of_changes(ranks: int) -> Outcome:
    return finding(
        "warning",
        f"The ranks' changes are added up: {ranks} times too large",
        "Before this step, and the last time, all models were moved by the sum of the changes that "
        f"the local steps of {ranks} ranks made, not by their average. If the local steps are made "
        "smaller for it, it is intended.",
        FIX,
        times_average=ranks,
    )


def _divided_by_all(facts: StepFacts) -> bool:
    """Whether each rank divides its loss by the tokens of all ranks, so that a sum is meant."""
    share = 0.0 if facts.ledger is None else facts.ledger.balance * len(facts.records)
    return facts.factor_unmeasured == NORMALISED or abs(share - 1) <= WEIGHT_HALF


def _is_outer(facts: StepFacts) -> bool:
    """Whether no backward belongs to this step alone: its gradients are changes of a model."""
    return all(m.claimed for r in facts.records.values() for m in r.micro_batches)
