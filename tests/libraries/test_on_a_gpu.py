"""Optimizers of 8 bits, on a CUDA device: ``make gpu``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from helpers.training import CLASSES, INPUTS, windows
from libraries.watched import assert_closes_its_windows

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
    data = [[(inputs.cuda(), labels.cuda()) for inputs, labels in w] for w in windows(5)]
    assert_closes_its_windows(nn.Sequential(*layers).cuda(), data, MAKE[name], right)
