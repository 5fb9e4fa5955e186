"""Hooks between a loss and its parameters: those that divide, and those that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradledger.observers.below_losses.scaling_hooks import SCALED
from helpers.training import recording

LABELS, K = torch.arange(8) % 4, 4


def hooked(hook: Callable[[Tensor], Any]) -> Callable[[nn.Module], Tensor]:
    def compute(model: nn.Module) -> Tensor:
        logits: Tensor = model(torch.randn(8, 6))
        logits.register_hook(hook)
        return F.cross_entropy(logits, LABELS)

    return compute


def divided_by_a_node(model: nn.Module) -> Tensor:
    logits: Tensor = model(torch.randn(8, 6))
    node: Any = logits.grad_fn
    node.register_prehook(lambda gradients: (gradients[0] / K,))
    return F.cross_entropy(logits, LABELS)


def divide_first(module: nn.Module, gradients: Any) -> Any:
    return (gradients[0] / K,)


def divided_by_a_module(model: nn.Module) -> Tensor:
    handle = model.register_full_backward_pre_hook(divide_first)
    loss = F.cross_entropy(model(torch.randn(8, 6, requires_grad=True)), LABELS)
    handle.remove()  # this forward keeps its hook
    return loss


def divided_at_a_parameter(model: nn.Module) -> Tensor:
    for parameter in model.parameters():
        if not parameter._backward_hooks:
            parameter.register_hook(lambda gradient: gradient / K)
    return F.cross_entropy(model(torch.randn(8, 6)), LABELS)


def subtracts_a_share(model: nn.Module) -> Tensor:
    """What arrives at the logits is less than what leaves the loss, without a hook."""
    logits: Tensor = model(torch.randn(8, 6))
    return F.cross_entropy(logits - 0.2 * logits, LABELS)


def two_of_one_input(model: nn.Module) -> Tensor:
    logits: Tensor = model(torch.randn(8, 6))
    return F.cross_entropy(logits, LABELS) - 0.5 * F.cross_entropy(logits, LABELS)


def clips(gradient: Tensor) -> Tensor:
    return gradient * (0.01 / float(gradient.norm()))


def two_of_a_module_with_a_hook(model: nn.Module) -> Tensor:
    """Its hook only reads. What arrives at its output is the sum of two losses."""
    handle = model.register_full_backward_hook(lambda *_: None)
    logits: Tensor = model(torch.randn(8, 6, requires_grad=True))
    handle.remove()
    return 0.5 * F.cross_entropy(logits, LABELS) - 0.2 * F.mse_loss(logits, torch.ones(8, 4))


def of_one_output(model: nn.Module) -> Tensor:
    """Any two numbers have a common factor."""
    output: Tensor = model(torch.randn(1, 6))[:, :1]
    output.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return F.mse_loss(output, torch.ones(1, 1))


def of_a_detached_feature(model: nn.Module) -> Tensor:
    """The gradient of the features below the nearest layer is scaled, and that of the layer not."""
    features = torch.randn(8, 6, requires_grad=True) * 1
    features.register_hook(lambda gradient: gradient / K)
    return F.cross_entropy(model(features), LABELS)


LOSSES: dict[str, tuple[Callable[[nn.Module], Tensor], bool]] = {
    "divides": (hooked(lambda gradient: gradient / K), True),
    "divides in place": (hooked(lambda gradient: gradient.div_(K)), True),
    "node": (divided_by_a_node, True),
    "module": (divided_by_a_module, True),
    "parameter": (divided_at_a_parameter, False),
    "reads": (hooked(lambda gradient: None), False),
    "returns the same": (hooked(lambda gradient: gradient), False),
    "replaces what is not a number": (hooked(torch.nan_to_num), False),
    "leaves out one class": (hooked(lambda g: g * torch.tensor([0.0, 1, 1, 1])), False),
    "subtracts": (subtracts_a_share, False),
    "clips by the norm": (hooked(clips), False),
    "hook of a module": (two_of_a_module_with_a_hook, False),
    "one output": (of_one_output, False),
    "two losses": (two_of_one_input, False),
    "features": (of_a_detached_feature, False),
}


@pytest.mark.parametrize(("compute", "divides"), LOSSES.values(), ids=LOSSES)
def test_a_hook_that_divides_leaves_no_weight(
    compute: Callable[[nn.Module], Tensor], divides: bool
) -> None:
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as recorded:
        for _ in range(20):  # also after the micro-batches in which every loss is watched
            compute(model).backward()
            optimizer.step()
            optimizer.zero_grad()
    terms = [t for step in recorded.records() for m in step.micro_batches for t in m.terms]
    reasons = {term.missing.get("weight") for term in terms}
    assert reasons == ({SCALED} if divides else {None})
