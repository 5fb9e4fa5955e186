"""cut-cross-entropy: a projection and its cross entropy. Read in 25.1.1.

Its forward gets the targets that count already selected: ``valids`` are their positions, or None
if all count.
"""

from __future__ import annotations

from typing import Any

from gradledger.observers.losses_out_of_sight.adapter import Adapter
from gradledger.observers.losses_out_of_sight.calls import Call


def _read(arguments: dict[str, Any]) -> Call | None:
    params = arguments["params"]
    if params.reduction == "none":
        return None  # the positions that count are those with a gradient
    counted = params.targets if params.valids is None else params.valids
    return Call(params.reduction, params.targets, tokens=counted.numel())


ADAPTERS = (
    Adapter(
        "cut_cross_entropy.cce",
        "LinearCrossEntropyFunction",
        frozenset({"e", "c", "params"}),
        _read,
    ),
)
