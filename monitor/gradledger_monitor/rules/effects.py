"""What a wrong gradient size does to training, in words, for the optimizer in use.

``RESPONSES`` is the only place that says how an optimizer responds to a factor on its gradients.
``tests/unit/test_effects.py`` measures every optimizer of ``torch.optim`` and compares it with this
table. An optimizer that is not in it may do anything, so nothing is claimed for it.
"""

from __future__ import annotations

import math
import re
from typing import Literal

from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts, clip_coefficient

# What a constant factor on all gradients does to an update, epsilon and weight decay apart:
# - proportional: the update is that much larger;
# - normalised: none, because the update is divided by a running size of the gradients;
# - sign: none, also where the factor changes, because only signs of gradients are used.
Response = Literal["proportional", "normalised", "sign"]

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
    "radam": "normalised",  # once its variance is rectified: its first five updates are not
    "rmsprop": "normalised",
    "sparseadam": "normalised",
    "rprop": "sign",
    # Not part of torch, so not measured: Lion (arXiv:2302.06675, algorithm 2) takes the sign of a
    # momentum, LAMB (arXiv:1904.00962, algorithm 2) normalises the update of each layer.
    "lion": "normalised",
    "lamb": "normalised",
}
# The same algorithm under another name: FusedAdam, PagedAdamW8bit, DeepSpeedCPUAdam.
_VARIANT = re.compile(r"^(?:fused|paged|deepspeedcpu|cpu)?(.+?)(?:(?:4|8|32)bit)?$")


def response(optimizer: str) -> Response | None:
    """How an optimizer, by the name of its class, responds to a factor; None where unknown."""
    name = _VARIANT.match(optimizer.lower())
    return RESPONSES.get(name[1]) if name else None


def of_factor(factor: float, facts: StepFacts) -> str:
    """The effect of gradients that are ``factor`` times as large as meant in every step."""
    optimizer = facts.optimizer_name
    match response(optimizer):
        case "proportional" if _is_clipped(facts):
            return (
                f"Without clipping, the effective learning rate with {optimizer} would be "
                f"{factor:.4g} times the one configured; the clipping of this loop hides some or "
                "all of it"
            )
        case "proportional":
            return (
                f"With {optimizer} the effective learning rate is {factor:.4g} times the one "
                "configured"
            )
        case "normalised":
            return (
                f"{optimizer} divides most of a constant factor of {factor:.4g} out again, so the "
                "loss curve hides it; a clipping threshold, epsilon and everything that compares "
                "gradient norms are off by it, and so is the step wherever the factor changes"
            )
        case "sign":
            return (
                f"{optimizer} uses only the signs of gradients, so a factor of {factor:.4g} does "
                "not change its steps; a clipping threshold and everything that compares gradient "
                "norms are off by it"
            )
    return f"How much of a factor of {factor:.4g} reaches the parameters depends on {optimizer}"


def of_passing_factor(factor: float, facts: StepFacts) -> str:
    """The effect of a factor that only some steps have."""
    optimizer = facts.optimizer_name
    match response(optimizer):
        case "normalised":
            less = "less" if abs(factor) < 1 else "more"
            return (
                f"{optimizer} divides out a constant factor only: these steps count {less} than "
                "the others"
            )
        case "proportional":
            return f"{of_factor(factor, facts)}, in these steps only"
    return of_factor(factor, facts)


def of_changing_factor(facts: StepFacts) -> str:
    """The effect of a factor that is another one in every step."""
    optimizer = facts.optimizer_name
    match response(optimizer):
        case "normalised":
            return f"{optimizer} divides out a constant factor, but not one that changes"
        case "proportional":
            return f"With {optimizer} the effective learning rate changes with it"
        case "sign":
            return f"{optimizer} uses only the signs of gradients, so its steps do not change"
    return f"How much of that reaches the parameters depends on {optimizer}"


def _is_clipped(facts: StepFacts) -> bool:
    """Whether clipping engages, or may do so, between the gradients and the step."""
    by_value = (number(event.limit) for event in facts.own_calls("clip_value"))
    if any(limit is not None and math.isfinite(limit) for limit in by_value):
        return True
    return any(clip_coefficient(event) < 1 for event in facts.own_calls("clip_norm"))
