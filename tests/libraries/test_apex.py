"""apex: its cross entropy and its optimizers, in their real source, under the hooks."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.projected import LOOPS, assert_judged_right, plain, train_projected
from helpers.training import IGNORED, Recording, cross_entropy, recording, tiny_model, windows
from libraries.apex_source import FOLDER, import_apex
from libraries.watched import assert_closes_its_windows

pytestmark = pytest.mark.skipif(not FOLDER, reason="GRADLEDGER_TEST_APEX has no checkout of apex")

OPTIMIZERS = {"FusedSGD": 0.1, "FusedAdam": 1e-2, "FusedLAMB": 1e-2}  # learning rates


@pytest.fixture
def xentropy(monkeypatch: pytest.MonkeyPatch) -> Any:
    return import_apex("apex.contrib.xentropy", monkeypatch)


@pytest.fixture
def optimizers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The optimizers; one allocates a flag on a GPU by name."""
    tensor = torch.tensor
    monkeypatch.setattr(
        torch, "tensor", lambda *args, **options: tensor(*args, **{**options, "device": "cpu"})
    )
    return import_apex("apex.optimizers", monkeypatch)


def apex(module: Any, hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    losses = module.SoftmaxCrossEntropyLoss.apply(hidden @ head.T, labels, 0.0, IGNORED)
    total: Tensor = losses.sum()
    return total if reduction == "sum" else total / (labels != IGNORED).sum()


@pytest.mark.parametrize("loop", LOOPS)
def test_its_cross_entropy_is_judged_right(xentropy: Any, loop: str) -> None:
    recorded = assert_judged_right(partial(apex, xentropy), LOOPS[loop])
    (term,) = recorded.records()[0].micro_batches[0].terms
    assert (term.kind, term.inferred) == ("NllLoss:SoftmaxCrossEntropyLossBackward", None)


def test_in_half_precision_the_arguments_show_the_tokens(xentropy: Any) -> None:
    def half(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
        logits = (hidden @ head.T).half()
        losses = xentropy.SoftmaxCrossEntropyLoss.apply(logits, labels, 0.0, IGNORED, True)
        total: Tensor = losses.sum()
        return total

    recorded = Recording()
    train_projected(half, LOOPS["right"], recording(recorded))
    plainly = Recording()
    train_projected(plain, LOOPS["right"], recording(plainly))
    tokens = [[m.terms[0].tokens for m in r.micro_batches] for r in recorded.records()]
    assert tokens == [[m.terms[0].tokens for m in r.micro_batches] for r in plainly.records()]
    assert recorded.evaluation().verdict == "balanced"


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_its_optimizers_close_their_windows(optimizers: Any, name: str, right: bool) -> None:
    make = getattr(optimizers, name)
    assert_closes_its_windows(
        tiny_model(),
        windows(5),
        lambda net: make(net.parameters(), lr=OPTIMIZERS[name]),
        right,
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_its_optimizers_make_the_same_bits_with_the_hooks(optimizers: Any, name: str) -> None:
    def trained(watched: Any) -> Tensor:
        net = tiny_model()
        with watched:
            optimizer = getattr(optimizers, name)(net.parameters(), lr=OPTIMIZERS[name])
            for window in windows(4):
                for batch in window:
                    cross_entropy(net, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
        return nn.utils.parameters_to_vector(net.parameters()).detach()

    assert torch.equal(trained(recording()), trained(nullcontext()))
