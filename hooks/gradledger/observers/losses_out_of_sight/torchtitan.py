"""torchtitan's cross entropy of a vocabulary on several ranks. Read in 0.3.0."""

from __future__ import annotations

from typing import Any

from gradledger.observers.losses_out_of_sight.adapter import Adapter
from gradledger.observers.losses_out_of_sight.calls import Call


def _loss_parallel(arguments: dict[str, Any]) -> Call:
    return Call(arguments["reduction"], arguments["labels"], -100)


ADAPTERS = (
    Adapter(
        "torchtitan.components.loss",
        "_LossParallelCrossEntropy",
        frozenset({"labels", "reduction"}),
        _loss_parallel,
    ),
)
