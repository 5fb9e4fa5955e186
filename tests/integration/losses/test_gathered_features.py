"""Contrastive losses over the features of all ranks, which ``all_gather`` makes constants."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss, normalize

from gradledger.observers.losses.autograd_graph import find_losses
from gradledger.observers.losses.compared_features import (
    gathers_by_function,
    holds_gathered_features,
)
from gradledger.observers.losses.loss_terms import GATHERED
from gradledger.records import StepRecord
from helpers.facts import facts, judged, record, term
from helpers.training import recording


def features(constant: bool) -> Tensor:
    return normalize(torch.randn(6, 4, requires_grad=not constant))


def is_seen(images: list[Tensor], texts: list[Tensor], ranks: int, dim: int = 0) -> bool:
    every_image, every_text = torch.cat(images, dim), torch.cat(texts, dim)
    logits = 4.0 * every_image @ every_text.T
    loss = cross_entropy(logits, torch.arange(len(logits)))
    loss = (loss + cross_entropy(logits.T, torch.arange(len(logits)))) / 2
    return any(holds_gathered_features(each, ranks) for each in find_losses(loss.grad_fn))


@pytest.mark.parametrize("own", [0, 1, 2])
def test_features_of_other_ranks_without_gradient_are_seen(own: int) -> None:
    images, texts = ([features(rank != own) for rank in range(3)] for _ in range(2))
    assert is_seen(images, texts, ranks=3)


def test_with_gradients_of_all_ranks_or_other_parts_nothing_is_lost() -> None:
    assert not is_seen([features(False)] * 2, [features(False)] * 2, ranks=2)
    half = [features(False), features(True)]
    assert not is_seen(half, half, ranks=4)
    assert not is_seen(half, half, ranks=2, dim=1)  # more columns for the same rows


def test_a_layer_ends_the_search() -> None:
    joined = torch.cat([features(False), features(True)])
    loss = cross_entropy(torch.nn.Linear(4, 3)(joined), torch.zeros(12, dtype=torch.long))
    assert not any(holds_gathered_features(each, 2) for each in find_losses(loss.grad_fn))


def test_such_a_window_is_not_balanced() -> None:
    window: StepRecord = record([term(12, 1 / 12)])
    window.micro_batches[0].missing["gathered"] = GATHERED
    evaluation = judged([facts(window)] * 3)
    assert evaluation.coverage["reduction.token_weights_unequal"] == f"not_measured: {GATHERED}"
    assert evaluation.verdict == "incomplete"


class OfAllRanks(torch.autograd.Function):
    """Features of two ranks; the gradient is that of the first one."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> tuple[Tensor, Tensor]:
        """Both are the same here."""
        return own.clone(), own.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Without the gradients of the other rank."""
        return gradients[0]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("by_function", [True, False])
def test_what_a_function_of_the_script_makes_of_gathered_gradients_is_unknown(
    ranks: int, by_function: bool
) -> None:
    """SimCLR: all rows are compared with each other on each rank."""
    apply: Any = OfAllRanks.apply
    first, second = (
        torch.cat(apply(own) if by_function else [own, own])
        for own in (features(False), features(False))
    )
    rows = torch.cat([first, second])
    logits = (rows @ rows.T / 0.5).masked_fill(torch.eye(24, dtype=torch.bool), -1e9)
    loss = cross_entropy(logits, torch.arange(24).roll(12))
    unknown = any(gathers_by_function(each, ranks) for each in find_losses(loss.grad_fn))
    assert unknown is (by_function and ranks == 2)


@pytest.mark.parametrize("detached", [True, False])
def test_targets_that_the_model_computes_are_no_fingerprint_of_the_data(detached: bool) -> None:
    """Two views that are compared: the ranks may have gathered both."""
    model = torch.nn.Linear(4, 3)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        first, second = model(torch.randn(2, 6, 4))
        mse_loss(first, second.detach() if detached else second).backward()
        optimizer.step()
    (step,) = recorded.records()
    assert (step.micro_batches[0].fingerprint is not None) is detached
