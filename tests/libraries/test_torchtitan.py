"""torchtitan's ``ChunkedLossWrapper``: a backward for each chunk of hidden states, inside the loss.

Its own source, on one rank. The truth is the gradient of a plain cross entropy over all tokens of
the window. Its backward passes on the gradients of the chunks, whatever its caller divides the loss
by: only ``global_valid_tokens`` divides.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.training import IGNORED, accused, recording
from libraries.gpu_losses import SOURCES
from libraries.watched import Steps, Watched

INPUTS, WIDTH, TOKENS, LENGTH, CHUNKS, K, STEPS = 6, 8, 11, 16, 4, 4, 4
MISSING, UNEVEN = "reduction.missing_division", "reduction.token_weights_unequal"
Batch = tuple[Tensor, Tensor]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Tanh())
        self.lm_head = nn.Linear(WIDTH, TOKENS, bias=False)


def _chunked(model: Model) -> Any:
    if not (SOURCES / "torchtitan").is_dir():
        pytest.skip("torchtitan is not installed")
    if str(SOURCES) not in sys.path:
        sys.path.append(str(SOURCES))
    module: Any = importlib.import_module("torchtitan.components.loss")
    wrapper = module.ChunkedLossWrapper(module.ChunkedLossWrapper.Config(num_chunks=CHUNKS))
    wrapper.set_lm_head(model.lm_head)
    return wrapper


def _batch(generator: torch.Generator) -> Batch:
    inputs = torch.randn(2, LENGTH, INPUTS, generator=generator)
    labels = torch.randint(TOKENS, (2, LENGTH), generator=generator)
    labels[:, int(torch.randint(3, LENGTH, (1,), generator=generator)) :] = IGNORED
    return inputs, labels


def _count(window: list[Batch]) -> int:
    return sum(int((labels != IGNORED).sum()) for _, labels in window)


def _train(divide: Any) -> Watched:
    """``divide``: from the window and a micro-batch to the tokens that divide its loss."""
    generator, model = torch.Generator().manual_seed(1), Model()
    wrapper, steps = _chunked(model), Steps(model)
    data = [[_batch(generator) for _ in range(K)] for _ in range(STEPS)]
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps.attach(optimizer)
        for window in data:
            for batch in window:
                loss, _ = wrapper(model.body(batch[0]), batch[1], divide(window, batch))
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    watched = Watched(recorded)
    for step, window in enumerate(data):

        def whole(window: list[Batch] = window) -> Tensor:
            inputs, labels = (torch.cat(each) for each in zip(*window, strict=True))
            logits = model.lm_head(model.body(inputs)).flatten(0, 1)
            return F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED)

        watched.truth.append(steps.compare(step, whole))
    return watched


def test_a_sum_over_the_tokens_of_the_window_is_right() -> None:
    watched = _train(lambda window, batch: torch.tensor(float(_count(window))))
    assert all(truth.is_true() for truth in watched.truth)
    assert watched.answer == ("balanced", [])
    assert [len(record.micro_batches) for record in watched.recorded.records()] == [K] * STEPS


def test_a_mean_of_each_micro_batch_is_named() -> None:
    watched = _train(lambda window, batch: torch.tensor(float(_count([batch]) * K)))
    assert min(truth.deviation for truth in watched.truth) > 0.02
    assert watched.answer == ("broken", [UNEVEN])


def test_a_mean_that_k_does_not_divide_is_named() -> None:
    watched = _train(lambda window, batch: torch.tensor(float(_count([batch]))))
    assert min(truth.factor for truth in watched.truth) > K / 2
    assert set(accused(watched.evaluation)) == {MISSING, UNEVEN}
