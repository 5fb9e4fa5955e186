"""Fused and chunked cross entropies of libraries: seen, and judged right.

The truth is ``helpers.training.Truth``: the weights that make the applied gradient of those of the
single tokens of a plain cross entropy in float64. Liger's kernels run in Triton's interpreter.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import pytest
from torch import Tensor, nn

from helpers.projected import LOOPS, FusedLoss, assert_judged_right
from helpers.training import IGNORED
from libraries.fused_sources import cut_cross_entropy_on_cpu


def liger_linear(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """liger-kernel's fused linear cross entropy."""
    liger: Any = pytest.importorskip("liger_kernel.transformers")
    loss: Tensor = liger.LigerFusedLinearCrossEntropyLoss(
        ignore_index=IGNORED, reduction=reduction
    )(head, hidden, labels)
    return loss


def liger_logits(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """liger-kernel's cross entropy of logits."""
    liger: Any = pytest.importorskip("liger_kernel.transformers")
    loss: Tensor = liger.LigerCrossEntropyLoss(ignore_index=IGNORED, reduction=reduction)(
        hidden @ head.T, labels
    )
    return loss


def cut(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """cut-cross-entropy, its own implementation."""
    package: Any = pytest.importorskip("cut_cross_entropy")
    loss: Tensor = package.linear_cross_entropy(
        hidden, head, labels, ignore_index=IGNORED, reduction=reduction, impl="cce"
    )
    return loss


def torchtune_chunked(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """torchtune's chunks of logits; it has no sum, so the mean is multiplied by its count."""
    module: Any = pytest.importorskip("torchtune.modules.loss.ce_chunked_output_loss")
    of_chunks = module.CEWithChunkedOutputLoss(num_output_chunks=3, ignore_index=IGNORED)
    chunks = (hidden @ head.T)[None].chunk(3, dim=1)
    loss: Tensor = of_chunks(list(chunks), labels[None])
    return loss if reduction == "mean" else loss * (labels != IGNORED).sum()


def trl_chunked(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """trl's log-probabilities in chunks, reduced as its trainers do."""
    kernels: Any = pytest.importorskip("trl.kernels.chunked_logprob")
    kept = labels != IGNORED
    outputs = kernels.chunked_log_probs(hidden, head, labels.clamp_min(0))
    total: Tensor = -(outputs[0] * kept).sum()
    return total if reduction == "sum" else total / kept.sum()


@pytest.fixture(autouse=True)
def _kernels_on_cpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "cut" in request.node.name:
        cut_cross_entropy_on_cpu(monkeypatch)


FUSED = [liger_linear, liger_logits, cut]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("fused", FUSED)
def test_a_fused_loss_is_judged_right(fused: FusedLoss, loop: str) -> None:
    recorded = assert_judged_right(fused, LOOPS[loop])
    (term,) = recorded.records()[0].micro_batches[0].terms
    assert term.kind.startswith("NllLoss:")
    assert term.inferred is None  # it is read from the arguments
