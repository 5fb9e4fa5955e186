"""The weight decay that an optimizer of PyTorch applies to each parameter (pure)."""

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

from gradledger.capture.isolation import number_at_once

# Those that add the parameter, times a factor, to its gradient.
COUPLED = frozenset(
    ("ASGD", "Adadelta", "Adagrad", "Adam", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")
)
# Those that subtract the parameter, times a factor and the learning rate, from itself.
DECOUPLED = frozenset(("Adafactor", "AdamW", "Muon"))


class WeightDecay(NamedTuple):
    """A factor for each parameter of the optimizer, by ``id``."""

    factors: dict[int, float]
    decoupled: bool


def weight_decay_of(optimizer: Any) -> WeightDecay | None:
    """None if it has none, or if how it applies it is not known."""
    kind = type(optimizer)
    groups = optimizer.param_groups
    if not kind.__module__.startswith("torch.optim.") or not any(map(_factor, groups)):
        return None
    flags = {
        bool(group.get("decoupled_weight_decay", kind.__name__ in DECOUPLED)) for group in groups
    }
    if len(flags) != 1 or kind.__name__ not in COUPLED | DECOUPLED:
        return None
    (decoupled,) = flags
    factors = {}
    for group in groups:
        rate = number_at_once(group.get("lr")) if decoupled else 1.0
        if rate is None:  # on a device
            return None
        factor = rate * _factor(group)
        if not 0 <= factor < math.inf:
            return None
        factors.update({id(p): factor for p in group["params"]})
    return WeightDecay(factors, decoupled)


def _factor(group: dict[str, Any]) -> float:
    factor = group.get("weight_decay")
    return float(factor) if isinstance(factor, numbers.Real) else 0.0
