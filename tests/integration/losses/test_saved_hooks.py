"""A loss whose tensors a saved-tensor hook holds is not read; any other loss is.

PyTorch 2.10 and later report these hooks. Each test also runs as on an older version, where the
hooks of gradledger note the scopes in which they are active.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from gradledger.observers.losses import saved_hooks
from helpers.training import Recording, cross_entropy, recording, tiny_model, tokens, windows


@pytest.fixture(autouse=True, params=["reported", "noted"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch as it is, and one that does not report the hooks."""
    if request.param == "noted":
        monkeypatch.setattr(saved_hooks, "reported", False)


class Counter:
    """Saved-tensor hooks that count how often a tensor is read."""

    def __init__(self) -> None:
        self.reads = 0

    def scope(self) -> saved_tensors_hooks:
        """A context in which the hooks hold every saved tensor."""
        return saved_tensors_hooks(lambda tensor: tensor, self._read)

    def _read(self, tensor: Tensor) -> Tensor:
        self.reads += 1
        return tensor


def train(forward: Callable[[nn.Module], Tensor]) -> None:
    """Three optimizer steps."""
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        forward(model).backward()
        optimizer.step()


def counts(recorded: Recording) -> list[int | None]:
    """The token counts of all losses."""
    batches = [each for step in recorded.records() for each in step.micro_batches]
    return [term.tokens for each in batches for term in each.terms]


BATCH = windows(1)[0][0]


def plain(model: nn.Module) -> Tensor:
    """A loss without hooks."""
    return cross_entropy(model, BATCH)


def after_a_checkpoint(model: nn.Module) -> Tensor:
    """The model is checkpointed, the loss is not."""
    return cross_entropy(lambda inputs: checkpoint(model, inputs, use_reentrant=False), BATCH)


@pytest.mark.parametrize("forward", [plain, after_a_checkpoint])
def test_a_loss_without_hooks_is_read(forward: Callable[[nn.Module], Tensor]) -> None:
    with recording() as recorded:
        train(forward)
    assert counts(recorded) == [tokens(BATCH)] * 3


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this thread", "another thread"])
def test_a_loss_inside_a_scope_is_not_read(elsewhere: bool) -> None:
    counter = Counter()

    def forward(model: nn.Module) -> Tensor:
        def inside() -> None:
            with counter.scope():
                losses.append(plain(model))

        losses: list[Tensor] = []
        run(inside) if elsewhere else inside()
        return losses[0]

    train(forward)
    alone, counter.reads = counter.reads, 0
    with recording() as recorded:
        train(forward)
    assert counter.reads == alone
    assert len(recorded.steps) == 3


def test_a_loss_created_before_the_hooks_noted_anything_is_not_read() -> None:
    counter, model = Counter(), tiny_model()
    with counter.scope():
        losses = [plain(model), plain(model)]
    losses.pop().backward()
    alone, counter.reads = counter.reads, 0
    with recording():
        losses.pop().backward()
    assert counter.reads == alone


def run(function: Callable[[], None]) -> None:
    """Run it on another thread."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
