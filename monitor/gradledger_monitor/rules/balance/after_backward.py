"""What multiplies gradients beside the loss: another backward, the loop, how ranks are combined."""

from __future__ import annotations

from gradledger_monitor.model.losses.repeated import repeated_backwards
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.tolerances import WEIGHT
from gradledger_monitor.rules.balance.evidence import SINGLE, Near, coefficient_explains


def applied_again(facts: StepFacts) -> int:
    """Backwards again on the loss of the one before, if the balance shows that they are applied.

    It is then larger by the ratio of all backwards to the others. The loop may have taken it back,
    as after a measurement, or share out the loss over its backwards. A constant that explains the
    balance may be the weight of the loss, and that of a sum that nothing divides may be any number.
    """
    batches = [micro_batch for _, micro_batch in facts.applied]
    repeated = repeated_backwards(batches, facts.record.half_precision)
    undecided = facts.unmeasured or facts.factor_unmeasured or facts.separate_losses
    declared = facts.run.contract in ("sequence", "sample")
    if not repeated or undecided or declared or facts.record.by_hand or facts.together is not None:
        return 0
    times = len(batches) / (len(batches) - repeated)
    scale = facts.run.declared_scale or 1.0
    factor = facts.shared_factors[facts.lowest_rank] * (facts.scale or 1.0)
    if Near(factor, facts.tolerance)(1 / times):
        return 0

    def is_repeated(objective: Objective) -> bool:
        balance = objective.ledger.balance / scale
        explained = objective.is_undivided_sum or coefficient_explains(facts, objective, balance)
        return Near(balance, facts.tolerance)(times) and not explained

    def is_weighted(objective: Objective) -> bool:
        return coefficient_explains(facts, objective, objective.ledger.balance / scale / times)

    shown = [is_repeated(objective) for objective in facts.objectives]
    others = [o for o, is_shown in zip(facts.objectives, shown, strict=True) if not is_shown]
    return repeated if any(shown) and all(map(is_weighted, others)) else 0


def excess_of_combination(facts: StepFacts) -> int | float | None:
    """R, 1/R or R/n, if a loop that combines the ranks itself is off from an average by that.

    The loop multiplies the sum over ranks by ``factor``: 1/R is an average, so factor * R is the
    excess over it. With 1/n, it divides by the ranks of a node, or of another group. Of groups over
    which DDP averages, their number takes the place of R. None if it is off by another number.
    """
    factor, ranks = facts.all_reduce_factor, facts.run.world_size
    if factor is None:
        return None
    near = Near(factor * ranks, facts.tolerance)
    parts = (facts.all_reduce and facts.all_reduce.of_groups) or ranks
    of_groups = [parts // n for n in range(2, parts) if parts % n == 0]
    return next((each for each in (parts, 1 / parts, *of_groups) if near(each)), None)


def multiplied_later(facts: StepFacts, times: float) -> bool:
    """Whether the loop multiplies by that what the wrapper has averaged, without the loss scale."""
    if not facts.averaged or facts.all_reduce is not None or facts.factor_unmeasured:
        return False
    factor = facts.shared_factors[facts.lowest_rank] * (facts.scale or 1.0)
    return Near(factor, facts.tolerance)(times)


def is_scaled_by_loop(facts: StepFacts) -> bool:
    """Whether the loop itself multiplied the gradients after backward, more than to unscale them.

    Where PyTorch clips, the loop does not.
    """
    if facts.factor_unmeasured is not None or facts.calls("clip_norm"):
        return False
    return not Near(factor_of_loop(facts), facts.tolerance)(1.0)


def divides_after_backward(facts: StepFacts, divisor: int) -> bool:
    """Whether the loop divides the gradients by that after backward, without clipping.

    The schedule of a pipeline does it for the loop.
    """
    if facts.factor_unmeasured is not None or facts.record.pipeline:
        return False
    return Near(factor_of_loop(facts), facts.tolerance)(1 / divisor)


def divides_own_by_ranks(facts: StepFacts) -> bool:
    """Whether ranks that communicate divide gradients by R, and yet step on their own ones."""
    if facts.averaged or facts.factor_unmeasured is not None or not facts.record.collectives_after:
        return False
    return Near(factor_of_loop(facts), facts.tolerance)(1 / facts.run.world_size)


def is_left_by_loop(facts: StepFacts) -> bool:
    """Whether the loop does nothing to the gradients after backward, but to unscale and to clip."""
    return facts.factor_unmeasured is None and Near(factor_of_loop(facts), facts.tolerance)(1.0)


def divides_by_count_after_backward(facts: StepFacts) -> bool:
    """Whether the factor after backward is 1, R or K over a whole number: a count, right or wrong.

    The coefficient of a clip is no such number. The factor is a ratio of single-precision numbers;
    that of half-precision ones shows nothing, and is taken for a count.
    """
    if facts.tolerance > WEIGHT:
        return True
    divisor = 1 / (factor_of_loop(facts) or 1.0)
    multiples = [divisor * n for n in (1, facts.run.world_size, facts.micro_batches)]
    return any(m > 1 and abs(m - round(m)) <= SINGLE * m for m in multiples)


def factor_between(facts: StepFacts) -> float | None:
    """The one number that multiplies the gradients between all backwards, if there is one.

    The schedule of a pipeline does it for the loop.
    """
    factors = [f for _, m in facts.applied if (f := number(m.rescaled)) is not None]
    if facts.record.pipeline or not factors or len(factors) < facts.micro_batches - 1:
        return None
    return factors[0] if all(map(Near(factors[0], facts.tolerance), factors)) else None


def factor_of_loop(facts: StepFacts) -> float:
    return facts.shared_factors[facts.lowest_rank] * (facts.scale or 1.0)
