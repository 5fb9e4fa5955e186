"""Masks that a loop applies before its loss: tokens are the elements that receive a gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu

from gradledger.observers.below_losses.masks import left_by_padding, mask_below
from gradledger_monitor.ingest import schema
from helpers.training import recording

Sum = Callable[[Tensor, Tensor, Tensor], Tensor]  # of predictions, targets and mask


def binary_sum(p: Tensor, y: Tensor, k: Tensor, weight: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(p, (y > 0).float(), weight=weight, reduction="sum")


MASKED: dict[str, Sum] = {
    "factor of both": lambda p, y, k: F.mse_loss(p * k, y * k, reduction="sum"),
    "factor, Huber": lambda p, y, k: F.smooth_l1_loss(p * k, y * k, reduction="sum"),
    "factor, vector": lambda p, y, k: F.mse_loss(p * k, y * k, reduction="none").sum(),
    "boolean factor": lambda p, y, k: ((p - y) * (k > 0)).square().sum(),
    "factor of a difference": lambda p, y, k: (((p - y) * k) ** 2).sum(),
    "factor, absolute": lambda p, y, k: ((p - y) * k).abs().sum(),
    "factor, not zero at zero": lambda p, y, k: (((p - y) * k) ** 2 + 1e-6).sqrt().sum(),
    "factor, flat": lambda p, y, k: (((p - y) * k).flatten() ** 2).sum(),
    "factor, times two": lambda p, y, k: (2 * ((p - y) * k)).square().sum(),
    "factor, weights above": lambda p, y, k: (((p - y) * k) ** 2 * (y.abs() + 1)).sum(),
    "fill": lambda p, y, k: (p - y).masked_fill(k == 0, 0).square().sum(),
    "selection": lambda p, y, k: torch.where(k > 0, p - y, torch.zeros(())).square().sum(),
    "selection of targets": lambda p, y, k: (torch.where(k == 0, y, p) - y).square().sum(),
    "weight": lambda p, y, k: binary_sum(p, y, k, k),
    "column": lambda p, y, k: ((p - y) * k[:, 2:3]).square().sum(),
}
UNMASKED: dict[str, Sum] = {
    "weights": lambda p, y, k: ((p - y) * (k + 0.5)).square().sum(),
    "dropout": lambda p, y, k: ((p - y) * (2 * k)).square().sum(),
    "weights of the loss": lambda p, y, k: binary_sum(p, y, k, k + 0.5),
    "another branch": lambda p, y, k: (p * k - p.tanh()).square().sum(),
    "one of two by label": lambda p, y, k: (k * p + (1 - k) * (1 - p)).square().sum(),
    "below a layer": lambda p, y, k: ((p * k) @ torch.ones(5, 5) - y).square().sum(),
    "before a sum of rows": lambda p, y, k: ((p * k).sum(1, keepdim=True) - y).square().sum(),
}


def sample() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs [3, 5, 4], targets and mask [3, 5], of which 2, 5 and 3 are ones."""
    generator = torch.Generator().manual_seed(1)
    mask = (torch.arange(5)[None] < torch.tensor([2, 5, 3])[:, None]).float()
    inputs, targets = (torch.randn(*s, generator=generator) for s in ((3, 5, 4), (3, 5)))
    return inputs, targets, mask


def term_of(loss: Sum, model: nn.Module) -> schema.Term:
    """The term of one backward of the sum."""
    inputs, targets, mask = sample()
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        (loss(model(inputs).squeeze(-1), targets, mask) / 10).backward()
        optimizer.step()
    (record,) = recorded.records()
    (term,) = record.micro_batches[0].terms
    return term


def with_gradient(loss: Sum) -> int:
    """How many predictions the sum gives a gradient."""
    _, targets, mask = sample()
    predictions = torch.full((3, 5), 0.3, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(predictions, targets, mask), predictions)
    return int((gradient != 0).sum())


@pytest.mark.parametrize("loss", MASKED.values(), ids=list(MASKED))
def test_elements_that_a_mask_below_leaves_out_are_no_tokens(loss: Sum) -> None:
    term = term_of(loss, nn.Linear(4, 1))
    assert (term.tokens, term.size) == (with_gradient(loss), 15)
    assert (term.tokens or 0) < 15


@pytest.mark.parametrize("loss", UNMASKED.values(), ids=list(UNMASKED))
def test_other_factors_leave_out_nothing(loss: Sum) -> None:
    assert term_of(loss, nn.Linear(4, 1)).tokens == 15


def _rows(y: torch.Tensor) -> torch.Tensor:
    """A mask of whole samples, which has all elements."""
    return (torch.arange(len(y)) > 0).float()[:, None].repeat(1, y.shape[1])


HOLES, FIRST = [0, 3, 1, 4, 2], torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])
MEANS: dict[str, tuple[bool, Sum]] = {
    "both": (True, lambda p, y, k: F.mse_loss(p * k, y * k)),
    "absolute": (True, lambda p, y, k: F.l1_loss(p * k, y * k)),
    "difference": (True, lambda p, y, k: (((p - y) * k) ** 2).mean()),
    "before the rows": (True, lambda p, y, k: F.mse_loss(p * k.flip(1), y * k.flip(1))),
    "fill": (True, lambda p, y, k: (p - y).masked_fill(k == 0, 0).square().mean()),
    "selection": (True, lambda p, y, k: torch.where(k > 0, p - y, torch.zeros(())).square().mean()),
    "weight": (True, lambda p, y, k: F.binary_cross_entropy_with_logits(p, (y > 0).float(), k)),
    "holes": (False, lambda p, y, k: F.mse_loss(p * k[:, HOLES], y * k[:, HOLES])),
    "one of a row": (False, lambda p, y, k: F.mse_loss(p * FIRST, y * FIRST)),
    "weights": (False, lambda p, y, k: F.mse_loss(p * (k + 0.5), y * (k + 0.5))),
    "samples": (False, lambda p, y, k: F.mse_loss(p * (y[:, :1] > 0), y * (y[:, :1] > 0))),
    "repeated samples": (False, lambda p, y, k: F.mse_loss(p * _rows(y), y * _rows(y))),
    "no mask": (False, lambda p, y, k: F.mse_loss(p, y)),
}


@pytest.mark.parametrize(("is_padded", "loss"), MEANS.values(), ids=list(MEANS))
def test_a_mean_counts_all_elements_and_its_tokens_are_no_padding(
    is_padded: bool, loss: Sum
) -> None:
    term = term_of(loss, nn.Linear(4, 1))
    assert (term.reduction, term.tokens) == (("none", 10) if is_padded else ("mean", 15))
    assert term.size == 15 and term.weight == pytest.approx(1 / 150)


def test_a_batch_without_padding_is_a_vector_as_those_with_padding_are() -> None:
    ones = term_of(lambda p, y, k: F.mse_loss(p * (k >= 0), y), nn.Linear(4, 1))
    assert (ones.reduction, ones.tokens) == ("none", 15)


def test_an_empty_mean_is_not_searched() -> None:
    p = torch.ones(0, 5, requires_grad=True)
    assert left_by_padding(F.mse_loss(p * torch.ones(0, 5), p).grad_fn, (0, 5)) is None


def test_a_mask_that_a_saved_tensor_hook_holds_is_not_read() -> None:
    def loss(p: Tensor, y: Tensor, k: Tensor) -> Tensor:
        with save_on_cpu():
            return ((p - y) * k).square().sum()

    assert term_of(loss, nn.Linear(4, 1)).tokens == 15


def test_the_search_for_a_mask_is_bounded() -> None:
    p, k = torch.ones(3, requires_grad=True), torch.tensor([1.0, 0.0, 1.0])
    near, far = p * k, p * k
    for _ in range(100):
        far = far + far.neg().abs()
    for value, counted in ((near, [True, False, True]), (far, None)):
        mask = mask_below(value.square().grad_fn, (3,))
        assert (None if mask is None else mask.tolist()) == counted
