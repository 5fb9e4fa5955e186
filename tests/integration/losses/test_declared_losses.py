"""Declarations of losses that cannot be observed, and their results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gradledger
from gradledger.capture.recorder import Recorder
from helpers.batches import eventually
from helpers.loops import answer, count
from helpers.patience import HANGS
from helpers.service import running_service
from helpers.training import Batches, Recording, tiny_model, tokens, windows

from .wrapped_cross_entropies import HIDDEN, CrossEntropy, own_function_with_reduction, plain

# the compiler looks at the .grad of activations
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

UNEQUAL = "reduction.token_weights_unequal"
STEPS = 6


def right(
    wrapped: CrossEntropy, model: nn.Module, batch: tuple[Tensor, Tensor], window: Batches
) -> Tensor:
    return wrapped(model(batch[0]).flatten(0, 1), batch[1].flatten(), "sum") / count(window)


def mean_of_means(
    wrapped: CrossEntropy, model: nn.Module, batch: tuple[Tensor, Tensor], window: Batches
) -> Tensor:
    return wrapped(model(batch[0]).flatten(0, 1), batch[1].flatten(), "mean") / len(window)


def declared(
    wrapped: CrossEntropy, loss_of: object, reduction: str, scaled: bool = False
) -> Recording:
    """A loop that declares each loss before its backward."""
    model, recorded = tiny_model(), Recording()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
    recorder = Recorder(recorded.steps.append)
    recorder.install()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in windows(STEPS):
        for batch in window:
            loss = loss_of(wrapped, model, batch, window)  # type: ignore[operator]
            recorder.losses.declare((batch[1] >= 0).sum(), reduction, 1.0)  # type: ignore[arg-type]
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    recorder.uninstall()
    return recorded


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("wrapped", HIDDEN)
def test_divisions_outside_the_hidden_part_are_seen(wrapped: CrossEntropy, scaled: bool) -> None:
    assert answer(declared(wrapped, right, "sum", scaled)) == ({}, "balanced")
    assert answer(declared(wrapped, mean_of_means, "mean", scaled)) == ({UNEQUAL: 1}, "broken")


@pytest.mark.parametrize("divisor", [1, 2])
def test_a_declared_loss_is_below_the_product_of_the_scaler(divisor: int) -> None:
    recorded, model = Recording(), nn.Linear(4, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    recorder = Recorder(recorded.steps.append)
    recorder.install()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = model(torch.randn(5, 4)).logsumexp(1).mean()
    recorder.losses.declare(5, "mean", 1.0)
    scaled = scaler.scale(loss)
    (scaled / divisor if divisor > 1 else scaled).backward()
    scaler.step(optimizer)
    recorder.uninstall()
    ((micro_batch,),) = (record.micro_batches for record in recorded.records())
    assert micro_batch.scale == 8.0
    assert micro_batch.terms[0].weight == pytest.approx(8 / divisor / 5)


def test_a_declared_window_has_the_ledger_of_one_that_is_seen() -> None:
    recorded = declared(own_function_with_reduction, right, "sum")
    for facts, window in zip(recorded.facts(), windows(STEPS), strict=True):
        assert facts.ledger is not None
        assert [e.tokens for e in facts.ledger.entries] == [tokens(batch) for batch in window]
        assert facts.ledger.balance == pytest.approx(1.0)


def test_where_nothing_is_hidden_the_declaration_is_of_the_root() -> None:
    """One micro-batch a step, and the root is the mean: weight 1 / tokens, balance 1."""
    model, recorded = tiny_model(), Recording()
    recorder = Recorder(recorded.steps.append)
    recorder.install()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in windows(1)[0]:
        loss = plain(model(batch[0]).flatten(0, 1), batch[1].flatten(), "mean") / 4
        recorder.losses.declare(tokens(batch), "mean", 0.25)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    recorder.uninstall()
    terms = [m.terms for record in recorded.records() for m in record.micro_batches]
    assert [[t.kind for t in term] for term in terms] == [["declared"]] * 4
    weights = [term[0].weight for term in terms]
    assert weights == pytest.approx([0.25 / tokens(batch) for batch in windows(1)[0]])


def test_a_declaration_is_for_one_backward_alone() -> None:
    model, recorded = tiny_model(), Recording()
    recorder = Recorder(recorded.steps.append)
    recorder.install()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorder.losses.declare(3, "mean", 1.0)
    for batch in windows(1)[0][:2]:
        plain(model(batch[0]).flatten(0, 1), batch[1].flatten(), "mean").backward()
    optimizer.step()
    recorder.uninstall()
    first, second = recorded.records()[0].micro_batches
    assert (first.terms[0].kind, second.terms[0].kind) == ("declared", "NllLossBackward0")


def test_a_script_declares_pauses_and_is_evaluated(tmp_path: Path) -> None:
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with running_service(tmp_path / "runs.db") as service:
        with gradledger.watch(optimizer=optimizer, url=service.url) as ledger:
            for window in windows(STEPS):
                for batch in window:
                    ledger.micro_batch(tokens=tokens(batch), reduction="sum")
                    right(own_function_with_reduction, model, batch, window).backward()
                optimizer.step()
                optimizer.zero_grad()
                ledger.pause()
                mean_of_means(plain, model, window[0], window).backward()
                optimizer.step()
                optimizer.zero_grad()
                ledger.resume()

        def evaluated_runs() -> list[tuple[str, int]]:
            return [(r["verdict"], r["steps"]) for r in service.get("/runs").json()["runs"]]

        assert eventually(HANGS, lambda: evaluated_runs() == [("balanced", STEPS)])


def test_a_declaration_that_means_nothing_is_refused() -> None:
    with gradledger.watch() as ledger, pytest.raises(ValueError, match="mean or sum"):
        ledger.micro_batch(tokens=3, reduction="none")  # type: ignore[arg-type]
