"""What a wrong gradient scale does to training, stated for the optimizer in use.

``RESPONSES`` is the only table of how optimizers respond to a factor on their gradients.
``tests/unit/test_gradient_scale_effects.py`` measures every optimizer of ``torch.optim`` and
compares it with this table. An optimizer outside the table gets no claim.
"""

from __future__ import annotations

import math
import re
from typing import Literal

from gradledger_monitor.model.clipping import clip_coefficient
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.number_text import significant

# Effect of a constant factor on all gradients, apart from epsilon and weight decay:
# - proportional: the update is multiplied by the factor;
# - normalised: no effect, because the update is divided by a running size of the gradients
#   (Adam, arXiv:1412.6980, section 2.1: the step size is invariant to the gradients' scale);
# - sign: no effect, even if the factor changes, because only the signs of gradients are used;
# - momentum_sign: no effect at all, because only the signs of a momentum are used, without epsilon.
#   A factor that changes moves the weight of a step in the momentum.
Response = Literal["proportional", "normalised", "sign", "momentum_sign"]

RESPONSES: dict[str, Response] = {
    "sgd": "proportional",
    "asgd": "proportional",
    "adadelta": "normalised",
    "adafactor": "normalised",
    "adagrad": "normalised",
    "adam": "normalised",
    "adamax": "normalised",
    "adamw": "normalised",
    "muon": "normalised",
    "nadam": "normalised",
    "radam": "normalised",  # after its first five updates, when the variance is rectified
    "rmsprop": "normalised",
    "sparseadam": "normalised",
    "rprop": "sign",
    # Not part of torch, so not measured: Lion (arXiv:2302.06675, algorithm 2) takes the sign of a
    # momentum, LAMB (arXiv:1904.00962, algorithm 2) normalises the update of each layer.
    "lion": "momentum_sign",
    "lamb": "normalised",
}
# Of these, weight decay is added to the gradient before it is normalised, unless the optimizer is
# set to decouple it: the factor changes its weight against the gradient.
_DECAY_IN_GRADIENT = frozenset(
    {"adadelta", "adagrad", "adam", "adamax", "nadam", "radam", "rmsprop"}
)
# The same algorithm under another name: FusedAdam, PagedAdamW8bit, DeepSpeedCPUAdam.
_VARIANT = re.compile(r"^(?:fused|paged|deepspeedcpu|cpu)?(.+?)(?:(?:4|8|32)bit)?$")


def optimizer_response(optimizer: str) -> Response | None:
    """The response of an optimizer, by its class name; None if it is not in the table."""
    return RESPONSES.get(_algorithm(optimizer))


def adds_decay_to_gradient(optimizer: str) -> bool:
    """Whether an optimizer that normalises the gradient adds weight decay to it before."""
    return _algorithm(optimizer) in _DECAY_IN_GRADIENT


def _algorithm(optimizer: str) -> str:
    name = _VARIANT.match(optimizer.lower())
    return name[1] if name else ""


def _settled(optimizer: str) -> str:
    """The subject of a sentence on what an optimizer cancels, with the updates that it does not."""
    late = _algorithm(optimizer) == "radam"
    return f"After its first five updates, {optimizer}" if late else optimizer


def _response(facts: StepFacts) -> Response | None:
    """The response of the optimizer; that of an update by hand is measured."""
    if facts.record.by_hand:
        return "proportional" if facts.record.step_size is not None else None
    return optimizer_response(facts.optimizer_name)


def constant_factor_effect(factor: float, facts: StepFacts) -> str:
    """The effect of gradients that are ``factor`` times the intended ones in every step."""
    optimizer = facts.optimizer_name
    match _response(facts):
        case "proportional" if is_clipped(facts):
            return (
                f"Without clipping, the effective learning rate with {optimizer} would be "
                f"{significant(factor)} times the configured one; the clipping in this loop hides "
                "some or all of the factor"
            )
        case "proportional":
            return (
                f"With {optimizer}, the effective learning rate is {significant(factor)} times the "
                "configured one"
            )
        case "normalised":
            return (
                f"{_settled(optimizer)} cancels most of a constant factor of "
                f"{significant(factor)}, so the "
                f"loss curve hides it. Clipping thresholds, epsilon{_decay(optimizer)} and "
                "comparisons of gradient norms are off by the factor, and so are the updates "
                "wherever the factor changes"
            )
        case "momentum_sign":
            return (
                f"{optimizer} uses only the signs of a momentum, so a constant factor of "
                f"{significant(factor)} does not change its updates; clipping thresholds and "
                "comparisons of gradient norms are off by the factor, and so are the updates "
                "wherever the factor changes"
            )
        case "sign":
            return (
                f"{optimizer} uses only the signs of gradients, so a factor of "
                f"{significant(factor)} does not change its updates; clipping thresholds and "
                "comparisons of gradient norms are off by the factor"
            )
    return (
        f"How much of a factor of {significant(factor)} reaches the parameters depends on "
        f"{optimizer}"
    )


def acts_as_learning_rate(facts: StepFacts) -> bool:
    """Whether a constant factor on the gradients is the same as one on the learning rate."""
    return _response(facts) == "proportional" and not is_clipped(facts)


def of_divided_rate(divisor: float, balance: float) -> str:
    """What to declare if the learning rate is divided instead: the update is the same."""
    return (
        f". If you divide the learning rate by {significant(divisor)} instead, "
        f"declare scale={significant(balance)}"
    )


def _decay(optimizer: str) -> str:
    return ", any weight decay" if adds_decay_to_gradient(optimizer) else ""


def intermittent_factor_effect(factor: float, facts: StepFacts) -> str:
    """The effect of a factor that only some steps have."""
    optimizer = facts.optimizer_name
    match _response(facts):
        case "normalised" | "momentum_sign":
            less = "less" if abs(factor) < 1 else "more"
            return (
                f"{_settled(optimizer)} cancels only a constant factor, so steps like this one "
                f"weigh {less} than the others"
            )
        case "proportional":
            return f"{constant_factor_effect(factor, facts)}, in steps like this one only"
    return constant_factor_effect(factor, facts)


def changing_factor_effect(facts: StepFacts) -> str:
    """The effect of a factor that differs from step to step."""
    optimizer = facts.optimizer_name
    match _response(facts):
        case "normalised" | "momentum_sign":
            return f"{_settled(optimizer)} cancels a constant factor, but not one that changes"
        case "proportional":
            return f"With {optimizer}, the effective learning rate changes with the balance"
        case "sign":
            return f"{optimizer} uses only the signs of gradients, so its updates do not change"
    return f"How much of the change reaches the parameters depends on {optimizer}"


def is_clipped(facts: StepFacts) -> bool:
    """Whether clipping changes, or may change, the gradients before the step."""
    by_value = (number(event.limit) for event in facts.own_calls("clip_value"))
    if any(limit is not None and math.isfinite(limit) for limit in by_value):
        return True
    return any(clip_coefficient(event) < 1 for event in facts.own_calls("clip_norm"))
