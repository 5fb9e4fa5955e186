"""A Learner of fastai: its optimizers are not PyTorch's, and its callback accumulates gradients.

``GradientAccumulation`` multiplies the loss of a micro-batch by its share of the samples. The truth
is the gradient of the mean over all labels of a window, at the parameters before its step.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.training import IGNORED, micro_batch, tiny_model
from helpers.updates import recorded_to_the_end
from libraries.torchvision_import import import_torchvision
from libraries.watched import Watched, compared

import_torchvision()
pytest.importorskip("fastai")
from fastai.callback.core import Callback, CancelBatchException  # noqa: E402
from fastai.callback.training import GradientAccumulation  # noqa: E402
from fastai.data.core import DataLoaders  # noqa: E402
from fastai.data.load import DataLoader  # noqa: E402
from fastai.learner import Learner  # noqa: E402
from fastai.optimizer import SGD, Adam  # noqa: E402

ROWS, K, STEPS = 4, 4, 5
EVEN = ((3, 3, 3, 3),) * K
UNEQUAL = ((2, 2, 2, 2), (3, 1, 2, 2), (9, 7, 8, 8), (4, 4, 4, 4))
MISSING, UNEVEN = "reduction.missing_division", "reduction.token_weights_unequal"


class EveryK(Callback):  # type: ignore[misc]
    """Accumulates the mean losses of K micro-batches, and divides by nothing."""

    def before_step(self) -> None:
        if (self.iter + 1) % K:
            raise CancelBatchException


class Applied(Callback):  # type: ignore[misc]
    """The parameters and the gradient of each step, of those that no other callback cancels."""

    order = 100

    def __init__(self) -> None:
        self.steps: list[tuple[list[Tensor], Tensor]] = []

    def before_step(self) -> None:
        now = list(self.learn.model.parameters())
        gradient = torch.cat([p.grad.flatten() for p in now])
        self.steps.append(([p.detach().clone() for p in now], gradient.clone()))


def _loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def _true_gradient(parameters: list[Tensor], window: list[tuple[Tensor, Tensor]]) -> Tensor:
    model: nn.Module = tiny_model()
    with torch.no_grad():
        for mine, value in zip(model.parameters(), parameters, strict=True):
            mine.copy_(value)
    outputs = torch.cat([model(inputs).flatten(0, 1) for inputs, _ in window])
    labels = torch.cat([labels.flatten() for _, labels in window])
    loss = F.cross_entropy(outputs, labels, ignore_index=IGNORED)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])


def _train(optimizer: Any, accumulation: Any, lengths: Any) -> Watched:
    generator = torch.Generator().manual_seed(0)
    longest = max(max(rows) for rows in lengths)
    windows = [[micro_batch(rows, generator) for rows in lengths] for _ in range(STEPS)]
    batches = [batch for window in windows for batch in window]
    padded = [(_padded(x, longest, 0.0), _padded(y, longest, IGNORED)) for x, y in batches]
    samples = [sample for batch in padded for sample in zip(*batch, strict=True)]
    loaders = DataLoaders(DataLoader(samples, bs=ROWS), DataLoader(samples[:ROWS], bs=ROWS))
    applied = Applied()
    with recorded_to_the_end() as recorded:
        learner = Learner(loaders, tiny_model(), loss_func=_loss, opt_func=optimizer, lr=1e-2)
        with learner.no_bar(), learner.no_logging():
            learner.fit(1, cbs=[accumulation, applied])
    watched = Watched(recorded)
    for step, (parameters, gradient) in enumerate(applied.steps):
        window = padded[step * K : (step + 1) * K]
        watched.truth.append(compared(gradient, _true_gradient(parameters, window)))
    return watched


def _padded(values: Tensor, length: int, filler: float) -> Tensor:
    missing = length - values.shape[1]
    more = values.new_full((len(values), missing, *values.shape[2:]), filler)
    return torch.cat([values, more], 1)


@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_accumulation_of_equal_micro_batches_is_right(optimizer: Any) -> None:
    watched = _train(optimizer, GradientAccumulation(K * ROWS), EVEN)
    assert [len(record.micro_batches) for record in watched.recorded.records()] == [K] * STEPS
    assert all(truth.is_true() for truth in watched.truth)
    assert watched.answer == ("balanced", [])


@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_its_mean_of_unequal_micro_batches_is_named(optimizer: Any) -> None:
    watched = _train(optimizer, GradientAccumulation(K * ROWS), UNEQUAL)
    assert min(truth.deviation for truth in watched.truth) > 0.05
    assert watched.answer == ("broken", [UNEVEN])


@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_accumulation_without_a_division_is_named(optimizer: Any) -> None:
    watched = _train(optimizer, EveryK(), EVEN)
    assert all(truth.factor == pytest.approx(K, rel=1e-4) for truth in watched.truth)
    assert watched.answer[1] == [MISSING]
