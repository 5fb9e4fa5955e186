"""Unsloth: cross entropy of logits, and of a projection in chunks. Read in 2026.10.9.

Those of a projection divide by the number of targets that count, or by ``n_items`` if the caller
gives it: the number of tokens of the whole window. The custom operator is what Unsloth calls unless
settings choose one of the others.
"""

from __future__ import annotations

from typing import Any

import torch

from gradledger.observers.losses_out_of_sight.adapter import Adapter
from gradledger.observers.losses_out_of_sight.calls import Call

_IGNORED = -100


def _of_logits(arguments: dict[str, Any]) -> Call:
    return Call("none", arguments["labels"], _IGNORED)


def _fused(arguments: dict[str, Any]) -> Call:
    ignored = int((arguments["extra_kwargs"] or {}).get("ignore_index", _IGNORED))
    labels, mask, count = arguments["labels"], arguments["mask"], arguments["n_items"]
    if arguments["shift_labels"]:
        labels = labels[..., 1:]
        if mask is not None:
            labels = labels.masked_fill(mask[..., 1:].to(labels.device) == 0, ignored)
    if count is None:
        return Call("mean", labels, ignored)
    return Call("sum", labels, ignored, scale=_one_over(count))


def _chunked(arguments: dict[str, Any]) -> Call:
    # the divisor is that of ``n_items``, or the count itself: both are one number of the call
    ignored = arguments.get("ignore_index", _IGNORED)
    return Call("sum", arguments["targets"], ignored, scale=_one_over(arguments["divisor"]))


def _one_over(count: Any) -> Any:
    if isinstance(count, torch.Tensor):
        return 1.0 / count.detach().reshape(-1)[0].to(torch.float32)
    return 1.0 / float(count)


ADAPTERS = (
    Adapter(
        "unsloth.kernels.cross_entropy_loss",
        "Fast_CrossEntropyLoss",
        frozenset({"logits", "labels"}),
        _of_logits,
    ),
    Adapter(
        "unsloth_zoo.fused_losses.cross_entropy_loss",
        "UnslothFusedLoss",
        frozenset({"labels", "mask", "n_items", "shift_labels", "extra_kwargs"}),
        _fused,
    ),
    Adapter(
        "unsloth_zoo.fused_losses.chunked_logprob",
        "UnslothChunkedCE",
        frozenset({"targets", "divisor"}),
        _chunked,
    ),
    Adapter(
        "unsloth_zoo.fused_losses.fused_linear",
        "_ce_op",
        frozenset({"targets", "divisor", "ignore_index"}),
        _chunked,
        method="_setup_context_fn",
        node="GeneratedBackwardFor_unsloth_zoo_fused_linear_ce_v2_defaultBackward",
    ),
)
