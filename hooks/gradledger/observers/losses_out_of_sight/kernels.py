"""Cross entropies that return one loss for each token: flash-attn, apex, Megatron.

The graph shows what the script does with the losses. The arguments show which tokens count, also
in fp16, where a gradient may be zero.
"""

from __future__ import annotations

from typing import Any

from gradledger.observers.losses_out_of_sight.adapter import Adapter
from gradledger.observers.losses_out_of_sight.calls import Call


def _flash(arguments: dict[str, Any]) -> Call:
    return Call("none", arguments["labels"], arguments["ignore_index"])


def _apex(arguments: dict[str, Any]) -> Call:
    return Call("none", arguments["labels"], arguments["padding_idx"])


ADAPTERS = (
    Adapter(
        "flash_attn.ops.triton.cross_entropy",
        "CrossEntropyLoss",
        frozenset({"logits", "labels", "ignore_index"}),
        _flash,
    ),
    Adapter(
        "apex.contrib.xentropy.softmax_xentropy",
        "SoftmaxCrossEntropyLoss",
        frozenset({"logits", "labels", "padding_idx"}),
        _apex,
    ),
)
