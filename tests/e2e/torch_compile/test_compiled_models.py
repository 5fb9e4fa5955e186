"""A compiled model whose loss stands outside: the same bits, the right answer."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import nn

from helpers.loops import answer, count, run_twice
from helpers.training import Batches, cross_entropy

UNEQUAL = "reduction.token_weights_unequal"

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own, with or without hooks


def sums(model: nn.Module, data: list[Batches]) -> None:
    """A sum over the tokens of the window."""
    train(model, data, "aot_eager", "sum")


def means(model: nn.Module, data: list[Batches]) -> None:
    """A mean of means."""
    train(model, data, "aot_eager", "mean")


def generated(model: nn.Module, data: list[Batches]) -> None:
    """The right loop on generated code."""
    train(model, data, "inductor", "sum")


def train(model: nn.Module, data: list[Batches], backend: str, reduction: str) -> None:
    torch.compiler.reset()
    compiled: Any = torch.compile(model, backend=backend, dynamic=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        for batch in window:
            by = count(window) if reduction == "sum" else len(window)
            (cross_entropy(compiled, batch, reduction=reduction) / by).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_right_loop_is_balanced() -> None:
    assert answer(run_twice(sums)) == ({}, "balanced")


def test_a_mean_of_means_is_named() -> None:
    assert answer(run_twice(means)) == ({UNEQUAL: 1}, "broken")


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_a_right_loop_on_generated_code_is_balanced() -> None:
    assert answer(run_twice(generated, 3)) == ({}, "balanced")
