"""What a cross entropy is given, as the hooks read it from the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.training import recording


class _DDPSink(torch.autograd.Function):
    """As DDP's around its outputs."""

    @staticmethod
    def forward(ctx: Any, reducer: None, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(each.clone() for each in inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *gradients


passed_on: Any = _DDPSink.apply
LABELS = torch.arange(8) % 4
TARGETS = F.one_hot(LABELS).float()
INPUTS: dict[str, tuple[Callable[[Tensor], Tensor], str | None]] = {
    "cross_entropy": (lambda z: F.cross_entropy(z, LABELS), "log_softmax"),
    "label smoothing": (
        lambda z: F.cross_entropy(z.softmax(1), LABELS, label_smoothing=0.1),
        "log_softmax(softmax)",
    ),
    "softmax, cast and selected": (
        lambda z: F.cross_entropy(z.double().softmax(-1).float()[1:], LABELS[1:]),
        "log_softmax(softmax)",
    ),
    "softmax over other classes": (
        lambda z: F.cross_entropy(z.view(8, 2, 2).softmax(2).view(8, 4), LABELS),
        "log_softmax",
    ),
    "scaled softmax": (lambda z: F.cross_entropy(10 * z.softmax(1), LABELS), "log_softmax"),
    "sigmoid": (lambda z: F.cross_entropy(z.sigmoid(), LABELS), "log_softmax(sigmoid)"),
    "log_softmax twice": (lambda z: F.cross_entropy(z.log_softmax(1), LABELS), "log_softmax"),
    "without a logarithm": (lambda z: F.nll_loss(z.softmax(1), LABELS), "softmax"),
    "without a logarithm, divided": (lambda z: F.nll_loss(z.softmax(1), LABELS) / 2, "softmax"),
    "without a logarithm, weighted": (
        lambda z: (F.nll_loss(z.softmax(1), LABELS, reduction="none") * torch.rand(8)).mean(),
        "other",
    ),
    "1 minus the probability": (lambda z: 1 + F.nll_loss(z.softmax(1), LABELS), "other"),
    "score and partition function": (
        lambda z: F.nll_loss(z, LABELS) + z.logsumexp(1).mean(),
        "other",
    ),
    "logarithm": (lambda z: F.nll_loss(z.softmax(1).log(), LABELS), "other"),
    "of a layer": (lambda z: F.nll_loss(z, LABELS), "linear"),
    "binary": (lambda z: F.binary_cross_entropy_with_logits(z, TARGETS), "linear"),
    "binary, of a sigmoid": (
        lambda z: F.binary_cross_entropy_with_logits(z.sigmoid(), TARGETS),
        "sigmoid",
    ),
    "binary, of learned targets": (
        lambda z: F.binary_cross_entropy_with_logits(torch.ones(8, 4), z.sigmoid()),
        None,
    ),
    "square, softmax over the same axis": (
        lambda z: F.cross_entropy((z @ z.T).softmax(1), LABELS),
        "log_softmax(softmax)",
    ),
    "square, softmax over the other axis": (
        lambda z: F.cross_entropy((z @ z.T).softmax(0), LABELS),
        "log_softmax",
    ),
    "square, transposed": (
        lambda z: F.cross_entropy((z @ z.T).softmax(1).T.contiguous(), LABELS),
        "log_softmax",
    ),
    "output passed on beside probabilities": (
        lambda z: F.cross_entropy(passed_on(None, z.softmax(1), z)[1], LABELS),
        "log_softmax",
    ),
    "probabilities passed on beside the output": (
        lambda z: F.cross_entropy(passed_on(None, z, z.softmax(1))[1], LABELS),
        "log_softmax(softmax)",
    ),
    "mean squared error": (lambda z: F.mse_loss(z.softmax(1), TARGETS), None),
}


@pytest.mark.parametrize("name", INPUTS)
def test_the_input_of_a_loss(name: str) -> None:
    loss, expected = INPUTS[name]
    model = nn.Linear(4, 4)
    with recording() as kept:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(17):
            optimizer.zero_grad()
            loss(model(torch.randn(8, 4))).backward()
            optimizer.step()
    records = [step.resolve() for step in kept.steps]
    terms = {r.step: [term for m in r.micro_batches for term in m.terms] for r in records}
    inputs = {step: next((t.input for t in of if t.input), None) for step, of in terms.items()}
    assert inputs == {step: expected if step < 17 else None for step in range(1, 18)}
