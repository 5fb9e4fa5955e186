"""liger-kernel: cross entropy of logits, and of a projection that it computes itself.

``forward`` of both computes the gradients, too, and keeps only these: the reduction and the
targets are in its arguments alone. Read in 0.8.5; the parameters are those since 0.5.
"""

from __future__ import annotations

from typing import Any

from gradledger.observers.losses_out_of_sight.adapter import Adapter
from gradledger.observers.losses_out_of_sight.calls import Call

_TOKEN_SCALING = "Liger's use_token_scaling weighs each token with its predicted probability"


def _read(arguments: dict[str, Any]) -> Call:
    scaled = arguments.get("use_token_scaling")
    # of logits, the class weights are called ``weight``, which is the projection of the other
    weights = arguments["ce_weight"] if "ce_weight" in arguments else arguments["weight"]
    return Call(
        arguments["reduction"],
        arguments["target"],
        arguments["ignore_index"],
        class_weights=weights,
        unknown=_TOKEN_SCALING if scaled else None,
    )


_NEEDS = frozenset({"_input", "target", "ignore_index", "reduction"})

ADAPTERS = (
    Adapter(
        "liger_kernel.ops.cross_entropy",
        "LigerCrossEntropyFunction",
        _NEEDS | {"weight"},
        _read,
    ),
    Adapter(
        "liger_kernel.ops.fused_linear_cross_entropy",
        "LigerFusedLinearCrossEntropyFunction",
        _NEEDS | {"weight", "ce_weight"},
        _read,
    ),
)
