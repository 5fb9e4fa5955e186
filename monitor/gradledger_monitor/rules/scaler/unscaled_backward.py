"""scaler.unscaled_backward"""

from __future__ import annotations

import math

from gradledger_monitor.ingest.schema import MicroBatch
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.tolerances import WEIGHT_HALF
from gradledger_monitor.rules.balance.episodes import may_pass_on_gradients
from gradledger_monitor.rules.definition import SMALL_STEPS, UNSTABLE
from gradledger_monitor.rules.gradient_scale_effects import constant_factor_effect
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.objective_names import objective_name
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.scaler.common import LEAST_SCALE, SCALER_STEPS_OR_SCALES

FIX = """\
scaler.scale(loss).backward()      # for every loss of the window"""
FIX_OF_SUM = """\
scaler.scale(loss + other).backward()      # the sum, not one of the losses"""


class UnscaledBackward(Rule):
    """A backward that the GradScaler unscales runs without ``GradScaler.scale``.

    **What it sees**

    Some micro-batches of the window start from a scaled loss, others from an unscaled one, whose
    gradients are smaller. Or all start from an unscaled one, the result of ``GradScaler.scale`` is
    not used or belongs to another optimizer, ``GradScaler.step`` divides the gradients by the
    scale, and the balance is 1/scale, or K or 1/K of it, apart from the constant in front of the
    loss. Or a loss is added to the result of ``GradScaler.scale``: of the constants in front of the
    two, one is a multiple of the scale.

    **Why it matters**

    ``unscale_`` divides all gradients by the scale. A micro-batch that was not multiplied by it
    weighs tens of thousands of times less than the others, so its tokens have almost no effect.
    If none was, the updates of SGD vanish, and no gradient is protected from fp16 underflow.

    **What to do**

    Scale every loss of the window: ``scaler.scale(loss).backward()``. The method returns the
    scaled loss; it does not change the loss in place.

    **When it is silent**

    Every micro-batch is scaled, by ``GradScaler.scale`` or by the loop itself
    (``loss * scaler.get_scale()``). A micro-batch without ``GradScaler.scale`` has no loss, starts
    from cached gradients, or has another loss than the scaled ones and a gradient above 1, which
    the loop may have scaled: no short decimal number in front of the loss, such as 45, explains it.

    **Incidents**

    hpcaitech/ColossalAI#1218
    """

    points_at = ("backward",)
    inhibits = ("reduction.balance_off", "reduction.double_division", *UNSTABLE, *SMALL_STEPS)

    precondition = SCALER_STEPS_OR_SCALES

    def evaluate(self, window: Window) -> Outcome:
        """Unscaled backwards in a window that the scaler steps."""
        record = window.facts.record
        applied = window.facts.applied
        if not record.skipped and not window.facts.own_calls("scaler_step"):
            return OK
        scaled = [m for _, m in applied if m.scale is not None]
        if not scaled:
            return self._none_is_scaled(window)
        scale = window.facts.scale or 1.0
        unscaled = [
            index
            for index, m in applied
            if m.scale is None and m.terms and not _is_scaled_by_the_loop(m, scaled, scale)
        ]
        if not unscaled:
            return OK
        return finding(
            "error",
            "A backward of a scaled window is not scaled",
            f"{len(unscaled)} of {len(applied)} micro-batches ran backward from a loss that was "
            f"not multiplied by the scale. Their gradients weigh {significant(scale)} "
            "times too little.",
            FIX,
            micro_batches=[index + 1 for index in unscaled],
            scale=scale,
        )

    @staticmethod
    def _none_is_scaled(window: Window) -> Outcome:
        """The scaler divides by a scale that no loss was multiplied by."""
        facts = window.facts
        scaler, objective = facts.record.scaler, window.balance.objective
        if facts.record.skipped or facts.unmeasured or scaler is None or objective is None:
            return OK
        scale = number(scaler.scale)
        others = (e for e in facts.calls("scaler_step") if not e.own)
        elsewhere = any(e.scaler == scaler.ordinal for e in others)
        if scale is None or scale < LEAST_SCALE or not (scaler.unused or elsewhere):
            return OK
        unknown = (m.missing.get("scale") for _, m in facts.applied)
        if reason := next(filter(None, unknown), None):
            return not_measured(reason)
        left = facts.shared_factors[facts.lowest_rank] * scale  # 1: it was divided by the scale
        passes_on = any(
            o.weighted_inside or may_pass_on_gradients(facts, o) for o in facts.objectives
        )
        if abs(left - 1) > WEIGHT_HALF or passes_on:
            return OK  # the loop may multiply by the scale below the loss, or use its gradients
        beside = _added_to_a_scaled_loss(facts, scale)
        if beside is not None:
            name = objective_name(beside, facts.objectives)
            return finding(
                "error",
                "A loss is added to a scaled loss, and is not scaled",
                f"The {name} was not multiplied by the scale of {significant(scale)}, and another "
                "loss of the same backward was. GradScaler.step divided the gradients of both by "
                f"the scale: the {name} weighs {significant(scale)} times too little.",
                FIX_OF_SUM,
                scale=scale,
                balance=beside.ledger.balance,
            )
        measured = (o for o in facts.objectives if not o.is_penalty)
        unscaled = next((o for o in measured if _lacks(o, scale, facts)), None)
        if _lacks(objective, scale, facts):
            unscaled = objective
        if unscaled is None:
            return OK
        balance = unscaled.ledger.balance
        several = len(facts.objectives) > 1
        of_one = f" of the {objective_name(unscaled, facts.objectives)}" if several else ""
        return finding(
            "error",
            "The loss is not scaled, and its gradients are unscaled",
            f"GradScaler.step divided the gradients by the scale of {significant(scale)}, and "
            f"backward ran from a loss that was not multiplied by it: the balance{of_one} is "
            f"{significant(balance)}. {constant_factor_effect(1 / scale, facts)}.",
            FIX,
            micro_batches=[index + 1 for index, _ in facts.applied],
            scale=scale,
            balance=balance,
        )


def _lacks(objective: Objective, scale: float, facts: StepFacts) -> bool:
    """Whether the balance is that of a mean, times the constant before it, without the scale."""
    without, k = objective.ledger.balance * scale, max(facts.micro_batches, 1)
    outer = {number(t.loss_term.outer_coefficient) or 0.0 for t in objective.terms}
    if any(math.isclose(each, scale, rel_tol=1e-6) for each in outer):
        return False  # the loop multiplies a loss with a small weight by the scale
    c = objective.coefficient
    constants = [1.0] if c is None or not _is_no_scale(c, scale, k) else [1.0, abs(c)]
    return any(abs(without / c / n - 1) < WEIGHT_HALF for c in constants for n in (1, k, 1 / k))


def _is_no_scale(constant: float, scale: float, k: int = 1) -> bool:
    """Whether the constant in front of a loss is written, and is no weight times the scale.

    Authors write short numbers, and may divide them by K.
    """
    constants = (abs(constant), abs(constant) * k)
    return any(_is_short(c) and not _is_short(c / scale) for c in constants)


def _is_short(value: float) -> bool:
    """Whether a number has at most two digits, as 45, 0.25, 2,000, and is no 16, 32 or 64.

    These may be loss scales, or such a scale times a weight.
    """
    is_scale = value >= LEAST_SCALE and math.frexp(value)[0] == 0.5
    return not is_scale and math.isclose(value, float(f"{value:.1e}"), rel_tol=1e-6)


def _added_to_a_scaled_loss(facts: StepFacts, scale: float) -> Objective | None:
    """The loss that lacks the scale, if another one of the same backwards is multiplied by it.

    Authors write round constants, and a loss scale is no round number: it shows in which constant
    it is.
    """
    constants = [(o, o.coefficient) for o in facts.objectives]
    if not any(c and _is_no_scale(c / scale, 1 / scale) for _, c in constants):
        return None
    for objective, constant in constants:
        c = abs(constant or 1.0)
        if _is_no_scale(c, scale) and _weighs_at_most(objective, c):
            return objective
    return None


def _weighs_at_most(objective: Objective, constant: float) -> bool:
    """Whether the constant is all that makes the loss heavier than a mean, or a sum."""
    most = constant * (1 + WEIGHT_HALF)
    for term in objective.terms:
        weight = abs(number(term.loss_term.weight) or 0.0)
        if weight * term.tokens > most and abs(weight / constant - 1) > WEIGHT_HALF:
            return False
    return True


def _is_scaled_by_the_loop(micro_batch: MicroBatch, scaled: list[MicroBatch], scale: float) -> bool:
    """Whether its gradients are as large as those of the scaled ones, rather than 1/scale.

    Another loss may have a small weight, times the scale: no weight is above 1, as a rule.
    """
    alike = [m for m in scaled if _losses(m) == _losses(micro_batch)]
    if not alike:
        size = _gradient_of_losses(micro_batch)
        return size is None or size > _largest_constant(micro_batch, scale) * (1 + WEIGHT_HALF)
    for size_of in (_gradient_of_losses, _gradient_norm):
        size, others = size_of(micro_batch), [size_of(m) for m in alike]
        largest = max((other for other in others if other), default=None)
        if size and largest:
            return size * size * scale >= largest * largest
    return False


def _losses(micro_batch: MicroBatch) -> set[tuple[str, int | None]]:
    return {(term.kind, term.head) for term in micro_batch.terms}


def _gradient_of_losses(micro_batch: MicroBatch) -> float | None:
    """The largest total weight of the tokens of a loss: the gradient that arrives at its mean."""
    weights = [(number(t.weight), t.tokens) for t in micro_batch.terms if not t.penalty]
    return max((abs(weight) * count for weight, count in weights if weight and count), default=None)


def _largest_constant(micro_batch: MicroBatch, scale: float) -> float:
    """The largest constant in front of its losses that is no weight times the scale; at least 1."""
    constants = [number(t.coefficient) or 1.0 for t in micro_batch.terms if not t.penalty]
    return max((abs(c) for c in constants if _is_no_scale(c, scale)), default=1.0)


def _gradient_norm(micro_batch: MicroBatch) -> float | None:
    return number(micro_batch.sample_norm)
