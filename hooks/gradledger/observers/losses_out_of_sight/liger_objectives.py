"""liger-kernel: divergences, and objectives of preferences and rewards. Read in 0.8.5.

The objectives project hidden states in chunks of a batch, and compute the gradients in ``forward``.
Each returns a mean over pairs, sequences or tokens, or a sum over tokens that is divided by the
tokens of the whole window.
"""

from __future__ import annotations

from typing import Any

import torch

from gradledger.observers.losses_out_of_sight.adapter import Adapter
from gradledger.observers.losses_out_of_sight.calls import Call

_TWO_MEANS = (
    "Liger's loss adds up a mean over tokens and a mean over pairs, of which neither is visible"
)
_OF_SEQUENCES = ("grpo", "sapo", "dr_grpo")
_OF_TOKENS = ("dapo", "cispo", "vespo")


def _pairs(arguments: dict[str, Any]) -> Call:
    of_tokens = arguments["compute_nll_loss"] and arguments.get("alpha", 1.0)
    pairs = arguments["target"].shape[0] // 2
    return _mean(pairs, _TWO_MEANS if of_tokens else None)


def _sequences(arguments: dict[str, Any]) -> Call:
    return _mean(arguments["target"].shape[0])


def _rewards(arguments: dict[str, Any]) -> Call:
    mask, kind = arguments["attention_mask"], arguments["loss_type"]
    window = arguments.get("num_items_in_batch")
    if kind in _OF_SEQUENCES:
        return _mean(mask.shape[0])
    if kind == "bnpo" or (kind in _OF_TOKENS and window is None and _ranks() == 1):
        return _mean(mask.sum())
    if kind in _OF_TOKENS and window is not None:
        divisor = (torch.as_tensor(window, dtype=torch.float32) / _ranks()).clamp(min=1.0)
        return Call("sum", tokens=mask.sum(), scale=1.0 / divisor, cross_entropy=False)
    return _mean(mask.shape[0], f"how Liger's {kind!r} weighs sequences is not read")


def _distillation(arguments: dict[str, Any]) -> Call:
    labels, ignored = arguments["true_labels"], arguments["ignore_index"]
    return Call("mean", labels, ignored, cross_entropy=False)


def _divergence(arguments: dict[str, Any]) -> Call | None:
    predictions, reduction = arguments["y_pred"], arguments["reduction"]
    if reduction == "none":
        return None  # the graph shows how the elements are reduced
    if reduction == "mean":  # over the entries of all rows, as in PyTorch
        return _mean(predictions.numel())
    kind: Any = "sum" if reduction == "sum" else "mean"
    return Call(kind, tokens=predictions.shape[0], cross_entropy=False)


def _symmetric_divergence(arguments: dict[str, Any]) -> Call:
    labels, ignored = arguments["shift_labels"], arguments["ignore_index"]
    if labels is None:
        rows = arguments["_input" if "_input" in arguments else "student_input"].shape[0]
        return _mean(rows)
    return Call("mean", labels, ignored, cross_entropy=False)


def _mean(count: torch.Tensor | int, unknown: str | None = None) -> Call:
    return Call("mean", tokens=count, cross_entropy=False, unknown=unknown)


def _ranks() -> int:
    distributed = torch.distributed
    started = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if started else 1


_CHUNKED = "liger_kernel.chunked_loss"
_PAIRS = frozenset({"target", "compute_nll_loss"})
_LABELS = frozenset({"true_labels", "ignore_index"})
_SHIFTED = frozenset({"shift_labels", "ignore_index"})

ADAPTERS = (
    *(
        Adapter(
            f"{_CHUNKED}.{name.lower()}_loss", f"LigerFusedLinear{name}Function", _PAIRS, _pairs
        )
        for name in ("DPO", "CPO", "ORPO", "SimPO")
    ),
    Adapter(
        f"{_CHUNKED}.kto_loss", "LigerFusedLinearKTOFunction", frozenset({"target"}), _sequences
    ),
    Adapter(
        f"{_CHUNKED}.grpo_loss",
        "LigerFusedLinearGRPOFunction",
        frozenset({"attention_mask", "loss_type"}),
        _rewards,
    ),
    Adapter(f"{_CHUNKED}.jsd_loss", "LigerFusedLinearJSDFunction", _LABELS, _distillation),
    Adapter(
        f"{_CHUNKED}.cosine_similarity_loss",
        "LigerFusedLinearCosineSimilarityFunction",
        _LABELS,
        _distillation,
    ),
    Adapter(
        "liger_kernel.ops.kl_div",
        "LigerKLDivLossFunction",
        frozenset({"y_pred", "reduction"}),
        _divergence,
    ),
    Adapter(
        "liger_kernel.ops.jsd",
        "LigerJSDFunction",
        _SHIFTED | {"_input"},
        _symmetric_divergence,
    ),
    Adapter(
        "liger_kernel.ops.fused_linear_jsd",
        "LigerFusedLinearJSDFunction",
        _SHIFTED | {"student_input"},
        _symmetric_divergence,
    ),
)
