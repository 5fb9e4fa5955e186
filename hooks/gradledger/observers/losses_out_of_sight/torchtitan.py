"""torchtitan's ``ChunkedLossWrapper``. Read in 0.3.0.

It calls backward for each chunk of a batch, where the graph shows the loss. The backward that the
trainer then calls passes on the gradient that these computed, so one batch is several backwards.
"""

from __future__ import annotations

from typing import Any

from gradledger.observers.losses_out_of_sight.adapter import Adapter
from gradledger.observers.losses_out_of_sight.calls import Call

_CHUNKED = (
    "torchtitan's ChunkedLossWrapper calls backward for each chunk inside the loss: "
    "run a few steps without it"
)


def _passes_on(_: dict[str, Any]) -> Call:
    return Call("sum", unknown=_CHUNKED)


def _loss_parallel(arguments: dict[str, Any]) -> Call:
    return Call(arguments["reduction"], arguments["labels"], -100)


ADAPTERS = (
    Adapter(
        "torchtitan.components.loss",
        "_DecoderOutputGradientBackProp",
        frozenset({"accumulated_grad"}),
        _passes_on,
    ),
    Adapter(
        "torchtitan.components.loss",
        "_LossParallelCrossEntropy",
        frozenset({"labels", "reduction"}),
        _loss_parallel,
    ),
)
