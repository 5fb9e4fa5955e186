"""Hooks of the script on parameters: what they do to gradients is no part of the claim."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from gradledger_monitor.rules.reduction.common import HOOKS
from helpers.facts import judged
from helpers.loops import count, train
from helpers.training import Batch, Batches, cross_entropy, tiny_model, windows


def scale(parameter: Any, factor: float = 0.5) -> None:
    parameter.grad.mul_(factor)


def coverage(hook: Callable[[Any], None] | None) -> str:
    """That of the division by K, of a loop that is right but for this hook."""
    model = tiny_model()
    for parameter in model.parameters() if hook is not None else ():
        parameter.register_post_accumulate_grad_hook(hook)

    def loss_of(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
        return cross_entropy(model, batch, reduction="sum") / count(window)

    return judged(train(loss_of, windows(3), model).facts()).coverage["reduction.missing_division"]


def test_hooks_after_accumulation_are_not_judged() -> None:
    assert coverage(scale) == f"ok: {HOOKS}"
    assert coverage(functools.partial(scale, factor=2.0)) == f"ok: {HOOKS}"


def test_a_loop_without_hooks_is_judged_as_a_whole() -> None:
    assert coverage(None) == "ok"
