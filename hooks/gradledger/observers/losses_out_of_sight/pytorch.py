"""PyTorch's own ``F.linear_cross_entropy`` in chunks (``options=...``), a custom operator.

Without options, it is composed of nodes that the graph shows. Read in 2.13.
"""

from __future__ import annotations

from typing import Any

from gradledger.observers.losses_out_of_sight.adapter import Adapter
from gradledger.observers.losses_out_of_sight.calls import Call

_NODE = "GeneratedBackwardFor_torch_nn_"
_OPERATOR = "_linear_cross_entropy_batch_chunked"


def _read(arguments: dict[str, Any]) -> Call:
    return Call(
        arguments.get("reduction", "none"),
        arguments["target"],
        arguments["ignore_index"],
        class_weights=arguments["weight"],
    )


ADAPTERS = tuple(
    Adapter(
        "torch.nn.modules.linear_cross_entropy",
        operator,
        frozenset({"target", "weight", "ignore_index"}),
        _read,
        method="_setup_context_fn",
        node=f"{_NODE}{operator}_defaultBackward",
    )
    for operator in (_OPERATOR, f"{_OPERATOR}_no_reduction")
)
