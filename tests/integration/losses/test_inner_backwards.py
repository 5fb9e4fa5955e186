"""Losses whose backward the script runs on detached hidden states, and passes on.

The truth is ``helpers.training.Truth``: the weights that turn the gradients of the single tokens
into the gradient that was applied.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.loops import answer, count
from helpers.projected import (
    LOOPS,
    Loop,
    Projected,
    assert_weights_are_true,
)
from helpers.training import IGNORED, Recording, Truth, Witness, recording, windows

STEPS = 4
# Runs the loss (it divides by itself) and every backward of one micro-batch.
Backward = Callable[[Projected, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]], None]
Product = Callable[[Tensor, Tensor], Tensor]


class _PassOn(torch.autograd.Function):
    """Returns a loss whose backward passes on a gradient that was computed before."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, gradient: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return loss.detach().clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        return ctx.saved_tensors[0] * upstream, None, None


_pass_on: Any = _PassOn.apply


def in_chunks(model: Projected, inputs: Tensor, labels: Tensor, loss_of: Any) -> None:
    """The head and its loss, for one chunk of detached hidden states after the other."""
    hidden = model.body(inputs)
    total, gradients = torch.zeros(()), []
    for chunk, targets in zip(hidden.chunk(3, 1), labels.chunk(3, 1), strict=True):
        leaf = chunk.detach().requires_grad_()
        loss = loss_of(leaf @ model.head.T, targets)
        loss.backward()
        total += loss.detach()
        gradients.append(leaf.grad)
    _pass_on(hidden, torch.cat(gradients, 1), total).backward()


def of_one_leaf(model: Projected, inputs: Tensor, labels: Tensor, loss_of: Any) -> None:
    """Chunks of one leaf, which collects their gradients."""
    hidden = model.body(inputs)
    leaf = hidden.detach().requires_grad_()
    for chunk, targets in zip(leaf.chunk(3, 1), labels.chunk(3, 1), strict=True):
        loss_of(chunk @ model.head.T, targets).backward()
    hidden.backward(leaf.grad)


def in_stages(model: Projected, inputs: Tensor, labels: Tensor, loss_of: Any) -> None:
    """Three stages that the script connects."""
    first = model.body[0](inputs)
    middle = first.detach().requires_grad_()
    second = model.body[1](middle)
    last = second.detach().requires_grad_()
    loss_of(last @ model.head.T, labels).backward()
    second.backward(last.grad)
    first.backward(middle.grad)


def of_cached_features(model: Projected, inputs: Tensor, labels: Tensor, loss_of: Any) -> None:
    """One loss on features, which are computed again, part by part, for their gradients."""
    with torch.no_grad():
        features = model.body(inputs)
    leaf = features.detach().requires_grad_()
    loss_of(leaf @ model.head.T, labels).backward()
    assert leaf.grad is not None
    for part, gradient in zip(inputs.split(1), leaf.grad.split(1), strict=True):
        model.body(part).backward(gradient)


def _by_products(
    model: Projected, inputs: Tensor, labels: Tensor, loss_of: Any, product: Product
) -> None:
    """The same, where the backward of each part starts from a product with the gradients."""
    with torch.no_grad():
        features = model.body(inputs)
    leaf = features.detach().requires_grad_()
    loss_of(leaf @ model.head.T, labels).backward()
    assert leaf.grad is not None
    for part, gradient in zip(inputs.split(1), leaf.grad.split(1), strict=True):
        product(model.body(part), gradient).backward()


def by_sums_of_products(model: Projected, inputs: Tensor, labels: Tensor, loss_of: Any) -> None:
    """``(features * gradient).sum()``."""
    _by_products(model, inputs, labels, loss_of, lambda part, gradient: (part * gradient).sum())


def by_dot_products(model: Projected, inputs: Tensor, labels: Tensor, loss_of: Any) -> None:
    """``torch.dot`` of flat vectors, as GradCache has it."""
    _by_products(
        model, inputs, labels, loss_of, lambda part, g: torch.dot(part.flatten(), g.flatten())
    )


PROGRAMS: list[Backward] = [
    in_chunks,
    of_one_leaf,
    in_stages,
    of_cached_features,
    by_sums_of_products,
    by_dot_products,
]


def train(
    backward: Backward, loop: Loop, watched: AbstractContextManager[object]
) -> tuple[Projected, Witness]:
    model = Projected()
    with watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        witness = Witness(model, optimizer)
        for window in windows(STEPS):
            for inputs, labels in window:
                counted = (labels != IGNORED).sum() if loop.reduction == "mean" else 1
                divisor = counted * loop.divisor(window)

                def loss_of(logits: Tensor, targets: Tensor, divisor: Any = divisor) -> Tensor:
                    flat = logits.flatten(0, 1), targets.flatten()
                    total = F.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum")
                    loss: Tensor = total / divisor
                    return loss

                backward(model, _padded(inputs), _padded(labels, IGNORED), loss_of)
            optimizer.step()
            optimizer.zero_grad()
    return model, witness


def _padded(values: Tensor, filler: float = 0.0) -> Tensor:
    """Long enough for three chunks."""
    missing = max(0, 3 - values.shape[1])
    shape = (len(values), missing, *values.shape[2:])
    return torch.cat([values, values.new_full(shape, filler)], 1)


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("backward", PROGRAMS)
def test_its_parts_are_one_micro_batch(backward: Backward, name: str) -> None:
    loop, recorded = LOOPS[name], Recording()
    model, witness = train(backward, loop, recording(recorded))
    assert [len(record.micro_batches) for record in recorded.records()] == [4] * STEPS
    data = windows(STEPS)
    for facts, applied, window in zip(recorded.facts(), witness.steps, data, strict=True):
        assert_weights_are_true(facts, Truth.of(model, applied, window))
    findings, verdict = answer(recorded)
    assert (set(findings), verdict) == loop.expected
    alone, _ = train(backward, loop, nullcontext())
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_gradient_that_is_scaled_on_its_way_is_not_measured() -> None:
    """The head is divided by less than the rest of the model."""

    def scaled(model: Projected, inputs: Tensor, labels: Tensor, loss_of: Any) -> None:
        hidden = model.body(inputs)
        leaf = hidden.detach().requires_grad_()
        loss = loss_of(leaf @ model.head.T, labels)
        loss.backward()
        (_pass_on(hidden, leaf.grad, loss.detach()) / 4).backward()

    recorded = Recording()
    train(scaled, LOOPS["right"], recording(recorded))
    assert answer(recorded) == ({}, "incomplete")
    assert "passes on 0.25 times their gradients" in str(recorded.facts()[0].unmeasured)


def test_a_product_with_cached_gradients_that_is_divided_is_not_measured() -> None:
    """By the number of parts, although their gradients add up to that of the batch."""

    def divided(model: Projected, inputs: Tensor, labels: Tensor, loss_of: Any) -> None:
        _by_products(model, inputs, labels, loss_of, lambda part, g: (part * g).sum() / 4)

    recorded = Recording()
    train(divided, LOOPS["right"], recording(recorded))
    assert answer(recorded) == ({}, "incomplete")
    assert "passes on 0.25 times their gradients" in str(recorded.facts()[0].unmeasured)


def test_a_product_with_other_numbers_passes_nothing_on() -> None:
    """A copy that the script changed is not the gradient: all backwards are micro-batches."""

    def changed(model: Projected, inputs: Tensor, labels: Tensor, loss_of: Any) -> None:
        _by_products(model, inputs, labels, loss_of, lambda part, g: (part * (2 * g)).sum())

    recorded = Recording()
    train(changed, LOOPS["right"], recording(recorded))
    assert all(len(record.micro_batches) > 4 for record in recorded.records())


def test_a_gradient_that_is_scaled_between_earlier_stages_is_not_measured() -> None:
    def scaled(model: Projected, inputs: Tensor, labels: Tensor, loss_of: Any) -> None:
        first = model.body[0](inputs)
        middle = first.detach().requires_grad_()
        second = model.body[1](middle)
        last = second.detach().requires_grad_()
        loss_of(last @ model.head.T, labels).backward()
        second.backward(last.grad)
        assert middle.grad is not None
        first.backward(middle.grad * 2)

    recorded = Recording()
    train(scaled, LOOPS["right"], recording(recorded))
    assert answer(recorded) == ({}, "incomplete")
    assert "passes on 2 times their gradients" in str(recorded.facts()[0].unmeasured)


class _Hidden(torch.autograd.Function):
    """A cross entropy that hides its graph, on an input of the size of a perturbation."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            loss = F.cross_entropy(leaf.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
            ctx.save_for_backward(torch.autograd.grad(loss, leaf)[0])
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        return ctx.saved_tensors[0] * upstream, None


hidden_loss: Any = _Hidden.apply


def test_the_gradient_of_a_perturbation_is_not_passed_on() -> None:
    """Adversarial training: the next backward has a loss of its own."""
    recorded, model = Recording(), Projected()
    with recording(recorded):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(STEPS):
            for inputs, labels in window:
                logits = model(inputs)
                change = torch.zeros_like(logits, requires_grad=True)
                flat = (logits + change).flatten(0, 1), labels.flatten()
                F.cross_entropy(*flat, ignore_index=IGNORED).div(8).backward()
                assert change.grad is not None
                (hidden_loss(model(inputs) + change.grad.sign(), labels) / 8).backward()
            optimizer.step()
            optimizer.zero_grad()
    for record in recorded.records():
        assert len(record.micro_batches) == 8
    assert recorded.evaluation().verdict != "balanced"  # its micro-batches are unequal


def test_a_hidden_state_whose_gradient_is_dropped_stays_a_micro_batch() -> None:
    """Truncated backpropagation: nothing is passed on, on purpose."""
    recorded, model = Recording(), Projected()
    with recording(recorded):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(STEPS):
            for inputs, labels in window:
                state = model.body(inputs).detach().requires_grad_()
                flat = ((state + model.body(inputs)) @ model.head.T).flatten(0, 1), labels.flatten()
                loss = F.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum")
                (loss / count(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert answer(recorded) == ({}, "balanced")


def test_a_loss_scaler_scales_the_parts_that_have_a_loss() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    recorded, model = Recording(), Projected()
    with recording(recorded):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(STEPS):
            for inputs, labels in window:
                hidden = model.body(inputs)
                leaf = hidden.detach().requires_grad_()
                flat = (leaf @ model.head.T).flatten(0, 1), labels.flatten()
                loss = F.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum")
                scaler.scale(loss / count(window)).backward()
                hidden.backward(leaf.grad)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert answer(recorded) == ({}, "balanced")


def test_more_chunks_than_a_hundred_are_one_micro_batch() -> None:
    chunks, inputs = 120, torch.randn(240, 8, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(240) % 5
    body, head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 5)
    with recording() as recorded:
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        for _ in range(2):
            hidden = body(inputs)
            leaf = hidden.detach().requires_grad_()
            for chunk, labels in zip(leaf.chunk(chunks), targets.chunk(chunks), strict=True):
                (F.cross_entropy(head(chunk), labels, reduction="sum") / 240).backward()
            hidden.backward(leaf.grad)
            optimizer.step()
            optimizer.zero_grad()
    for step in recorded.facts():
        assert step.micro_batches == 1
        assert step.ledger is not None
        assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((240, 1))


@pytest.mark.parametrize("by_product", [False, True])
def test_many_backwards_that_pass_gradients_on_leave_later_losses_to_be_searched(
    by_product: bool,
) -> None:
    inputs = torch.randn(80, 8, generator=torch.Generator().manual_seed(1))
    body = torch.nn.Linear(8, 5)
    with recording() as recorded:
        optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
        for _ in range(3):
            features = body(inputs).detach().requires_grad_()
            F.cross_entropy(features, torch.arange(80) % 5).backward()
            assert features.grad is not None
            for chunk, gradient in zip(inputs.chunk(40), features.grad.chunk(40), strict=True):
                if by_product:
                    (body(chunk) * gradient).sum().backward()
                else:
                    body(chunk).backward(gradient)
            optimizer.step()
            optimizer.zero_grad()
    for step in recorded.facts():
        assert step.ledger is not None
        assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((80, 1))
