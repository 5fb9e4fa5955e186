"""Explains a balance by earlier windows: how it follows K, and whether it varies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradledger_monitor.model.objectives import Objective, read_in
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.after_backward import (
    divides_by_count_after_backward,
    is_left_by_loop,
    is_scaled_by_loop,
)
from gradledger_monitor.rules.balance.counts import (
    NO_COUNT,
    divides_by_count_beside,
    divisors_are_counts,
    followed_count,
    steps_of_one_window,
)
from gradledger_monitor.rules.balance.divisors import divisor_of_accelerate
from gradledger_monitor.rules.balance.evidence import (
    Near,
    has_known_unit,
    is_bare_reduction,
    is_divided_by,
    is_mean,
    is_mean_by_weight,
    is_one_divided_cross_entropy,
    is_round,
    is_undivided_alone,
    is_weight,
    reductions,
)
from gradledger_monitor.rules.balance.patterns import (
    FAIR,
    ONE_MORE,
    Closed,
    Diagnosis,
    differs_from_earlier,
    wrong_balances,
    wrong_windows,
)

NEARLY_EVEN = 0.01  # d below which unequal weights are information (DESIGN section 6)
EXPLAINED = 8  # earlier wrong windows that a number must explain, at most
FEWEST_FAIR = 2  # windows that show a unit
MOST_MICRO_BATCHES = 4096  # the largest m for which B = 1/m is read as a division by m
SCALED_BY_LOOP = "the loop scales the gradients after backward, by a factor that changes"
CLIPPED_SCALED = "the loop clips scaled gradients itself, before or after unscaling: unknown"
MAY_CONTAIN_K = (
    "nothing divides the loss by K but the constant in front of it, if that contains the division; "
    "declare scale= with the balance that is intended"
)
UNDIVIDED_SUM = (
    "the loss is a sum of elements whose meaning is not known, and nothing divides it{}: if it is "
    "a function of a whole micro-batch, such as of its correlations, the division by K is missing; "
    "declare scale= with the balance that is intended"
)
BUT_A_CONSTANT = " but the constant in front of it"
COUNT_BESIDE = (
    "the loss is divided by what another loss of the window counts, as a detector divides by its "
    'matched boxes; if that is intended, declare contract="sample"'
)
OTHER_DIVISOR = (
    "the loss is divided by a number that is not the count of the elements in its graph, of which "
    "a mask may leave some out, and its balance differs between windows; if that is intended, "
    'declare contract="sample"'
)


def in_usual_unit(objective: Objective, past: Sequence[Closed]) -> Objective:
    """The objective in the unit in which the windows before were fair, if they were in no other.

    Then the author means this unit. A window that is fair in none shows none.
    """
    units = {closed.unit for closed in past if closed.pattern in FAIR and closed.unit}
    fair = sum(closed.pattern in FAIR for closed in past)
    return read_in(objective, units.pop()) if len(units) == 1 and fair >= FEWEST_FAIR else objective


def by_window_length(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis | None:
    """B follows K over windows of different lengths: B = c * K or c / K, c being any constant.

    Only of means of each micro-batch: a sum that a constant divides follows the tokens, and these
    follow K. A loss that is multiplied by its batch size is a sum, too. If most windows are equally
    long, the others are shorter, and something divides, then it is the usual K.
    """
    scale = facts.run.declared_scale or 1.0
    windows = [(c.micro_batches, c.balance / scale) for c in past if c.balance][-EXPLAINED:]
    windows.append((facts.micro_batches_of(objective), balance))
    k, usual = windows[-1][0], max(n for n, _ in windows)
    still_scaled = facts.scale is not None and is_scaled_by_loop(facts)  # c contains the loss scale
    if len({n for n, _ in windows}) == 1 or still_scaled:
        return None
    if not is_mean(facts, objective) and not is_mean_by_weight(facts, objective, count=usual):
        return None
    coefficient = objective.coefficient
    lengths = ", ".join(str(n) for n in sorted({n for n, _ in windows}))
    evidence = f"So it was in windows of {lengths} micro-batches"

    def constant(power: int) -> float | None:
        """c, if B = c * K ** power in every window."""
        values = [b / n**power for n, b in windows]
        even = all(Near(v, facts.tolerance)(values[-1]) for v in values)
        return values[-1] if even else None

    undivided, squared = constant(1), constant(-1)
    if len(windows) < 3 and (undivided or squared):
        return Diagnosis("pending", ONE_MORE, objective)
    if undivided is not None:
        of_ranks = [c.micro_batches for c in past if c.pattern == "world"]
        if of_ranks and of_ranks[-1] != k:  # there B was R, or 1/R: their K divides all windows
            ratio = k / of_ranks[-1]
            return Diagnosis("partial", "", objective, ratio, balance / ratio, evidence)
        by_usual = Near(undivided * usual, facts.tolerance)  # K divides whole windows
        if coefficient is not None and abs(coefficient) > 1 and not by_usual(abs(coefficient)):
            return Diagnosis("coefficient", objective=objective)
        full = sum(n == usual for n, _ in windows) * 2 > len(windows)
        if full and not is_undivided_alone(objective):
            if k == usual:
                return Diagnosis("coefficient", objective=objective)
            ratio = k / usual
            return Diagnosis("partial", "", objective, ratio, balance / ratio, evidence)
        larger = round(1 / max(undivided, 1e-6))
        if (
            larger > usual
            and not is_round(undivided)
            and Near(undivided, facts.tolerance)(1 / larger)
        ):
            return None  # such as 1/6, where windows grow up to 6
        return Diagnosis("missing", "", objective, k, undivided, evidence)
    if squared is not None:
        return Diagnosis("double", "", objective, 1 / k, squared, evidence)
    return None


def by_history(
    facts: StepFacts, objective: Objective, balance: float, past: Sequence[Closed]
) -> Diagnosis:
    """Compares with earlier windows that were off: B varies, or it is always the same.

    A varying B accuses only if the weights are nearly even: others are another rule's finding.
    """
    if not wrong_balances(past):
        return Diagnosis("pending", ONE_MORE, objective)
    varies = differs_from_earlier(
        balance * (facts.run.declared_scale or 1.0), past, facts.tolerance
    )
    even = objective.reading.is_even(facts.tolerance)
    if even and is_scaled_by_loop(facts):
        if _clips(facts, balance, past):
            if facts.scale is None:  # else it may have clipped before unscaling
                return Diagnosis("clipped", objective=objective)
            return Diagnosis("unmeasured", CLIPPED_SCALED, objective)
        if varies and not divides_by_count_after_backward(facts):
            return Diagnosis("unmeasured", SCALED_BY_LOOP, objective)
    has_unit = has_known_unit(objective)
    if not has_unit and len(wrong_balances(past)) == 1:
        return Diagnosis("pending", ONE_MORE, objective)  # two may be nearly equal by chance
    if varies and not is_mean_by_weight(facts, objective):
        if steps_of_one_window(facts, objective, past) is not None:
            return Diagnosis("early_steps", objective=objective)
        if not has_unit:
            return _of_unknown_divisor(facts, objective, past)
        if even and divides_by_count_beside(facts, objective, past):
            return Diagnosis("unmeasured", COUNT_BESIDE, objective)
        if not divisors_are_counts(facts, objective, past):
            reason = NO_COUNT if even else OTHER_DIVISOR
            return Diagnosis("other_divisor", reason, objective)
        if objective.ledger.misallocation < NEARLY_EVEN:
            return Diagnosis(
                "wandering", objective=objective, constant=_weight(facts, objective, past)
            )
    if varies and not has_unit and any(c.pattern == "other_divisor" for c in past):
        # here, its divisor is the count of a unit by chance
        return Diagnosis("other_divisor", OTHER_DIVISOR, objective)
    divisor = _divisor(balance)
    single = len(facts.record.micro_batches) == 1
    whole = 1 < divisor <= MOST_MICRO_BATCHES and Near(balance, facts.tolerance)(1 / divisor)
    if single and whole and not varies:
        if facts.record.accumulating or any(c.pattern == "unprepared" for c in past):
            return Diagnosis("unprepared", objective=objective, ratio=1 / divisor)
        stated = divisor == divisor_of_accelerate(facts, past) and is_divided_by(objective, divisor)
        if stated or is_one_divided_cross_entropy(objective):
            return Diagnosis("early_step", objective=objective, ratio=1 / divisor)
    if _may_contain_k(facts, objective, balance):
        return Diagnosis("unmeasured", MAY_CONTAIN_K, objective)
    if _may_lack_k(facts, objective):
        but = "" if objective.coefficient is None else BUT_A_CONSTANT
        return Diagnosis("unmeasured", UNDIVIDED_SUM.format(but), objective)
    return Diagnosis("constant", objective=objective)


def _may_contain_k(facts: StepFacts, objective: Objective, balance: float) -> bool:
    """Whether B is K times a round constant, and nothing else divides the means of micro-batches.

    As 5 may be 20 / 4; 1.25 is 5 / 4.
    """
    k, constant = facts.micro_batches_of(objective), objective.coefficient
    if constant in (None, 1) or k == 1 or not is_round(constant) or not is_mean(facts, objective):
        return False
    alone = is_undivided_alone(objective, with_coefficient=True)
    return alone and Near(balance / abs(constant), facts.tolerance)(k)


def _may_lack_k(facts: StepFacts, objective: Objective) -> bool:
    """Whether a bare sum is added in each of several micro-batches, and nothing divides it."""
    several = facts.micro_batches_of(objective) > 1 and not objective.is_penalty
    of_unknown = is_bare_reduction(objective) and "mean" not in reductions(objective)
    alone = is_undivided_alone(objective, with_coefficient=True) and is_left_by_loop(facts)
    return several and of_unknown and alone


def _weight(facts: StepFacts, objective: Objective, past: Sequence[Closed]) -> float:
    """The constant that weighs the loss on purpose.

    1 if it undoes other divisions, as a fair window before shows, too.
    """
    coefficient = objective.coefficient
    undoes = _undoes_divisions(facts, objective) or any(c.pattern in FAIR for c in past)
    weighs = not undoes and is_weight(coefficient, facts.micro_batches_of(objective))
    return abs(coefficient or 1.0) if weighs else 1.0


def _undoes_divisions(facts: StepFacts, objective: Objective) -> bool:
    """Whether the constant in front of the loss is what divides it besides its count.

    By the K of ``accelerator.backward()``, by the ranks of an average, or by both.
    """
    coefficient = abs(objective.coefficient or 1.0)
    ranks = facts.run.world_size if facts.averaged and facts.divisor is None else 1
    divisors = [term.loss_term.divisors for term in objective.terms]

    def divides(rest: float) -> bool:
        return rest == 1 or all(rest in each and len(each) > 1 for each in divisors)

    return coefficient != 1 and any(divides(coefficient / n) for n in (1, ranks))


def _of_unknown_divisor(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> Diagnosis:
    """A sum that is divided by no count of its elements, and whose B differs between windows.

    If an element weighs the same in all of them, a constant divides the sum by design: a loss of
    Dr. GRPO is divided by a greatest length.
    """
    weights = [weight for _, weight in mean_weights(past)]
    near = Near(objective.ledger.balance / objective.ledger.tokens, facts.tolerance)
    even = objective.reading.is_even(facts.tolerance)
    if even and all(map(near, weights)):
        return Diagnosis("constant", objective=objective)
    if even and divides_by_count_beside(facts, objective):
        return Diagnosis("coefficient", objective=objective)
    followed = followed_count(facts, objective, past) if even else None
    if followed is None:
        return Diagnosis("other_divisor", OTHER_DIVISOR, objective)
    if not followed.is_shown:
        return Diagnosis("pending", ONE_MORE, objective)
    if followed.part != "window":
        return Diagnosis("other_count", objective=objective)
    constant = abs(objective.coefficient or 1.0)
    if any(Near(followed.ratio * c, facts.tolerance)(1.0) for c in (1.0, constant)):
        return Diagnosis("coefficient", objective=objective)  # the count of another objective
    return Diagnosis("other_divisor", OTHER_DIVISOR, objective)


def _clips(facts: StepFacts, balance: float, past: Sequence[Closed]) -> bool:
    """Whether the loop scaled the gradients to the norm of earlier windows, by another factor.

    Norms that are equal by chance, or of equal windows, show no clip: hence the small tolerance.
    """
    closed = [c for c in wrong_windows(past) if c.scaled_to and c.balance][-EXPLAINED:]
    same_norm = Near(facts.norm or 0.0, facts.tolerance / 100)
    same_balance = Near(balance, facts.tolerance / 100)
    scale = facts.run.declared_scale or 1.0
    return bool(closed) and (
        all(same_norm(c.scaled_to or 0.0) for c in closed)
        and not all(same_balance((c.balance or 0.0) / scale) for c in closed)
    )


def _divisor(balance: float) -> int:
    """The whole number whose reciprocal is nearest; 0 if the balance is too small or not finite.

    The reciprocal of a denormal balance would be infinite.
    """
    return round(1 / balance) if 0.5 / MOST_MICRO_BATCHES < balance < math.inf else 0


def mean_weights(past: Sequence[Closed]) -> list[tuple[Closed, float]]:
    """The wrong windows, each with the mean weight of its tokens."""
    means = [(c, (c.balance or 0.0) / c.tokens) for c in wrong_windows(past) if c.tokens]
    return [(closed, mean) for closed, mean in means if mean]
