"""Losses that are right, in the many ways in which people write them: no finding.

The verdict states whether they could be measured: "balanced", never "incomplete".
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradledger_monitor.model.chart_metrics import chart_metrics
from helpers.loops import EQUAL, Loss, TwoHeads, answer, count, train
from helpers.training import (
    IGNORED,
    Batch,
    Batches,
    cross_entropy,
    tiny_model,
    tokens,
    windows,
)

CLASS_WEIGHTS = torch.tensor([0.2, 1.0, 3.0, 0.7, 1.3, 2.0, 0.5])


# ---------------------------------------------------------------------- cross entropies


def equal_lengths(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    return cross_entropy(model, batch) / len(window)


def smoothed(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    return cross_entropy(model, batch, label_smoothing=0.1, reduction="sum") / count(window)


def smoothed_mean(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    return cross_entropy(model, batch, label_smoothing=0.1) * tokens(batch) / count(window)


def _class_weight(window: Batches) -> Tensor:
    labels = torch.cat([labels.flatten() for _, labels in window])
    return CLASS_WEIGHTS[labels[labels != IGNORED]].sum()


def class_weights_over_class_weights(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    return cross_entropy(model, batch, weight=CLASS_WEIGHTS, reduction="sum") / _class_weight(
        window
    )


def class_weights_over_tokens(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    return cross_entropy(model, batch, weight=CLASS_WEIGHTS, reduction="sum") / count(window)


def class_weights_mean(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    share = _class_weight([batch]) / _class_weight(window)
    return cross_entropy(model, batch, weight=CLASS_WEIGHTS) * share


def bfloat16_logits(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    logits = model(batch[0]).flatten(0, 1).bfloat16()
    labels = batch[1].flatten()
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum") / count(window)


def masked_by_hand(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    labels = batch[1].flatten()
    each = F.cross_entropy(model(batch[0]).flatten(0, 1), labels.clamp_min(0), reduction="none")
    return (each * (labels != IGNORED)).sum() / count(window)


def masked_mean_of_equals(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    mask = (batch[1].flatten() != IGNORED).float()
    labels = batch[1].flatten().clamp_min(0)
    each = F.cross_entropy(model(batch[0]).flatten(0, 1), labels, reduction="none")
    return (each * mask).sum() / mask.sum() / len(window)


def selected_then_mean(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    keep = batch[1].flatten() != IGNORED
    each = cross_entropy(model, batch, reduction="none")
    return each[keep].mean() / len(window)


def gathered_by_hand(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    labels = batch[1].flatten()
    picked = model(batch[0]).flatten(0, 1).log_softmax(-1).gather(1, labels.clamp_min(0)[:, None])
    loss: Tensor = -(picked.squeeze(1) * (labels != IGNORED)).sum() / count(window)
    return loss


def in_chunks(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    logits, labels = model(batch[0]).flatten(0, 1), batch[1].flatten()
    parts = [
        F.cross_entropy(piece, wanted, ignore_index=IGNORED, reduction="sum")
        for piece, wanted in zip(logits.split(3), labels.split(3), strict=True)
    ]
    return torch.stack(parts).sum() / count(window)


def in_chunks_added_up(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    logits, labels = model(batch[0]).flatten(0, 1), batch[1].flatten()
    total = torch.zeros(())
    for piece, wanted in zip(logits.split(3), labels.split(3), strict=True):
        total = total + F.cross_entropy(piece, wanted, ignore_index=IGNORED, reduction="sum")
    return total / count(window)


def mean_per_sequence(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    """Every sequence counts the same, by design; not every micro-batch."""
    each = cross_entropy(model, batch, reduction="none").view(batch[1].shape)
    lengths = (batch[1] != IGNORED).sum(1)
    return (each.sum(1) / lengths).sum() / sum(len(labels) for _, labels in window)


def scaled_by_a_constant(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    return 0.5 * cross_entropy(model, batch, reduction="sum") / count(window)


CROSS_ENTROPIES = [
    (equal_lengths, EQUAL, "balanced"),
    (smoothed, None, "balanced"),
    (smoothed_mean, None, "balanced"),
    (class_weights_over_class_weights, None, "balanced"),
    (class_weights_over_tokens, None, "balanced"),
    (class_weights_mean, None, "balanced"),
    (bfloat16_logits, None, "balanced"),
    (masked_by_hand, None, "balanced"),
    (masked_mean_of_equals, EQUAL, "balanced"),
    (selected_then_mean, EQUAL, "balanced"),
    (gathered_by_hand, None, "balanced"),
    (in_chunks, None, "balanced"),
    (in_chunks_added_up, None, "balanced"),
    (mean_per_sequence, None, "balanced"),
    (scaled_by_a_constant, None, "balanced"),
]


@pytest.mark.parametrize(
    ("loss_of", "lengths", "verdict"), CROSS_ENTROPIES, ids=lambda v: getattr(v, "__name__", "")
)
def test_a_cross_entropy_that_is_right_is_not_accused(
    loss_of: Loss, lengths: object, verdict: str
) -> None:
    data = windows(6) if lengths is None else windows(6, lengths=lengths)
    assert answer(train(loss_of, data)) == ({}, verdict)


@pytest.mark.parametrize("k", [1, 4])
def test_label_smoothing_as_a_plain_mean_over_equals_is_right(k: int) -> None:
    data = [window[:k] for window in windows(4, lengths=EQUAL)]

    def loss_of(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
        return cross_entropy(model, batch, label_smoothing=0.1) / len(window)

    recorded = train(loss_of, data)
    assert answer(recorded) == ({}, "balanced")
    assert [chart_metrics(f)["balance"] for f in recorded.facts()] == pytest.approx(
        [1] * 4, rel=1e-3
    )


# ---------------------------------------------------------------------- other losses


def two_heads(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    recorded, labels = model(batch[0]), batch[1].flatten()
    first = F.cross_entropy(recorded.first, labels, ignore_index=IGNORED)
    second = F.cross_entropy(recorded.second, labels, ignore_index=IGNORED)
    return (first + second) / 2 / len(window)


def auxiliary_loss(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    recorded, labels = model(batch[0]), batch[1].flatten()
    main = F.cross_entropy(recorded.first, labels, ignore_index=IGNORED, reduction="sum")
    side = F.cross_entropy(recorded.second, labels, ignore_index=IGNORED, reduction="sum")
    return (main + 0.1 * side) / count(window)


def weight_penalty(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    main = cross_entropy(model, batch, reduction="sum") / count(window)
    return main + 1e-3 * sum((p**2).sum() for p in model.parameters()) / len(window)


def contrastive(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    """CLIP: each row must find its own partner, in both directions."""
    flat = batch[0].flatten(0, 1)[:6]
    left = F.normalize(model(flat), dim=-1)
    right = F.normalize(model(flat.flip(-1)), dim=-1)
    similar, own = 10 * left @ right.T, torch.arange(len(flat))
    return (F.cross_entropy(similar, own) + F.cross_entropy(similar.T, own)) / 2 / len(window)


def squares_mean(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    outputs = model(batch[0])
    return F.mse_loss(outputs, torch.rand_like(outputs)) / len(window)


def half_of_squares(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    outputs = model(batch[0])
    return 0.5 * F.mse_loss(outputs, torch.rand_like(outputs))


def yes_or_no(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    outputs = model(batch[0])
    return F.binary_cross_entropy_with_logits(outputs, torch.rand_like(outputs)) / len(window)


def yes_or_no_of_probabilities(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    outputs = model(batch[0]).sigmoid()
    return F.binary_cross_entropy(outputs, torch.rand_like(outputs)) / len(window)


def distilled(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    inputs = batch[0].flatten(0, 1)
    student = model(inputs).log_softmax(-1)
    teacher = torch.ones_like(student).softmax(-1)
    return F.kl_div(student, teacher, reduction="batchmean") / len(window)


def squares_by_hand(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    loss: Tensor = ((model(batch[0]) - 1) ** 2).mean() / len(window)
    return loss


OTHERS = [
    (two_heads, TwoHeads),
    (auxiliary_loss, TwoHeads),
    (weight_penalty, tiny_model),
    (contrastive, tiny_model),
    (squares_mean, tiny_model),
    (yes_or_no, tiny_model),
    (yes_or_no_of_probabilities, tiny_model),
    (distilled, tiny_model),
    (squares_by_hand, tiny_model),
]
SQUARE = (((4, 4), (4, 4), (4, 4), (4, 4)),)  # nothing padded: every loss sees the same sizes


@pytest.mark.parametrize(
    ("loss_of", "make"), OTHERS, ids=lambda value: getattr(value, "__name__", "")
)
def test_another_loss_that_is_right_is_not_accused(
    loss_of: Loss, make: Callable[[], nn.Module]
) -> None:
    data = windows(6, lengths=SQUARE)
    assert answer(train(loss_of, data, make())) == ({}, "balanced")


def test_half_of_a_mean_square_at_k_1_is_a_coefficient() -> None:
    data = [window[:1] for window in windows(4, lengths=SQUARE)]
    recorded = train(half_of_squares, data)
    assert answer(recorded) == ({}, "balanced")
    assert [chart_metrics(f)["balance"] for f in recorded.facts()] == pytest.approx([0.5] * 4)
