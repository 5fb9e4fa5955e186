"""Optimizers of 8 bits, on a CUDA device: ``make gpu``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from helpers.training import CLASSES, INPUTS, accused, cross_entropy, tokens, windows
from helpers.updates import recorded_to_the_end

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device here"
)

WIDTH = 1024  # parameters of fewer than 4096 elements are kept in 32 bits


def _bitsandbytes(name: str) -> Callable[[nn.Module], Any]:
    def make(net: nn.Module) -> Any:
        package: Any = pytest.importorskip("bitsandbytes")
        return getattr(package.optim, name)(net.parameters(), lr=1e-3)

    return make


def _torchao(name: str) -> Callable[[nn.Module], Any]:
    def make(net: nn.Module) -> Any:
        package: Any = pytest.importorskip("torchao.optim")
        return getattr(package, name)(net.parameters(), lr=1e-3)

    return make


MAKE = {
    **{f"bitsandbytes-{name}": _bitsandbytes(name) for name in ("AdamW8bit", "Lion8bit")},
    "bitsandbytes-PagedAdamW8bit": _bitsandbytes("PagedAdamW8bit"),
    **{f"torchao-{name}": _torchao(name) for name in ("AdamW8bit", "AdamW4bit", "AdamWFp8")},
}


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("name", MAKE)
def test_an_optimizer_of_8_bits_is_judged(name: str, right: bool) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(INPUTS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)]
    net = nn.Sequential(*layers).cuda()
    with recorded_to_the_end() as recorded:
        optimizer = MAKE[name](net)
        for window in windows(5):
            batches = [(inputs.cuda(), labels.cuda()) for inputs, labels in window]
            total = sum(map(tokens, batches))
            for batch in batches:
                summed = cross_entropy(net, batch, reduction="sum")
                loss = summed / total if right else cross_entropy(net, batch) / len(window)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(recorded.records()) == 5
    evaluation = recorded.evaluation()
    expected = ("balanced", []) if right else ("broken", ["reduction.token_weights_unequal"])
    assert (evaluation.verdict, list(accused(evaluation))) == expected
