"""Accelerate's accumulation loop, watched: the same bits, whole windows, and its known mistake."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from frameworks.stored_run import config_of, evaluations_of
from gradledger.observers.accumulation import divisor_of_accelerate
from helpers.loops import EQUAL
from helpers.service import running_service
from helpers.training import (
    Batch,
    Batches,
    Recording,
    accused,
    cross_entropy,
    recording,
    tiny_model,
    tokens,
    windows,
)

accelerate = pytest.importorskip("accelerate")

STEPS, MICRO_BATCHES = 20, 4
UNEQUAL = "reduction.token_weights_unequal"


def mean(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    """As the guide shows it; Accelerate divides by the number of micro-batches."""
    return cross_entropy(model, batch)


def over_all_tokens(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    """As the guide on accumulation shows it for losses that are no mean of equal parts."""
    count = sum(map(tokens, window))
    return cross_entropy(model, batch, reduction="sum") * MICRO_BATCHES / count


def squared(model: nn.Module, batch: Batch, window: Batches) -> Tensor:
    """No cross entropy: what divides it once may be its own."""
    return torch.nn.functional.mse_loss(model(batch[0]), torch.zeros(()).expand(*batch[1].shape, 7))


def trained(
    watched: AbstractContextManager[object],
    data: list[Batches],
    loss_of: Any,
    prepares_optimizer: bool = True,
) -> Any:
    """The loop of Accelerate's guide, with dropout, clipping and a schedule."""
    accelerate.state.AcceleratorState._reset_state(True)
    model = nn.Sequential(tiny_model(), nn.Dropout(0.3))
    with watched:
        accelerator = accelerate.Accelerator(gradient_accumulation_steps=MICRO_BATCHES, cpu=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
        loader: Any = DataLoader(list(chain.from_iterable(data)), batch_size=None)  # type: ignore[arg-type]
        model, schedule, loader = accelerator.prepare(model, schedule, loader)
        if prepares_optimizer:
            optimizer = accelerator.prepare(optimizer)
        for index, batch in enumerate(loader):
            with accelerator.accumulate(model):
                loss = loss_of(model, batch, data[index // MICRO_BATCHES])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    return [*model.parameters(), torch.get_rng_state()]


def test_twenty_steps_end_in_the_same_bits() -> None:
    recorded, data = Recording(), windows(STEPS)
    watched, alone = (trained(w, data, mean) for w in (recording(recorded), nullcontext()))
    for ours, theirs in zip(watched, alone, strict=True):
        assert torch.equal(ours, theirs)


def test_the_wrapped_optimizer_is_counted_once() -> None:
    recorded = Recording()
    trained(recording(recorded), windows(STEPS), mean)
    assert {step.optimizer for step in recorded.steps} == {0}
    records = recorded.records()
    assert [len(record.micro_batches) for record in records] == [MICRO_BATCHES] * STEPS
    ours = [m.terms[0].tokens for record in records for m in record.micro_batches]
    assert ours == [tokens(batch) for batch in chain.from_iterable(windows(STEPS))]


def test_its_mean_of_micro_batch_means_is_named() -> None:
    recorded = Recording()
    trained(recording(recorded), windows(STEPS), mean)
    evaluation = recorded.evaluation()
    assert accused(evaluation) == {UNEQUAL: 1}
    assert evaluation.verdict == "broken"


@pytest.mark.parametrize("loss_of", [mean, squared])
def test_an_optimizer_that_was_not_prepared_steps_too_early(loss_of: Any) -> None:
    recorded = Recording()
    data = windows(STEPS, lengths=EQUAL)
    trained(recording(recorded), data, loss_of, prepares_optimizer=False)
    assert len(recorded.records()) == STEPS * MICRO_BATCHES
    found = {finding.rule: finding for finding in recorded.evaluation().findings}
    early = found["loop.step_every_microbatch"]
    assert "the optimizer was not prepared" in early.summary
    assert "accelerator.prepare" in early.fix


@pytest.mark.parametrize(
    ("loss_of", "lengths"), [(mean, EQUAL), (over_all_tokens, None)], ids=["equal", "over tokens"]
)
def test_a_right_loop_is_balanced(loss_of: Any, lengths: Any) -> None:
    recorded = Recording()
    data = windows(STEPS, lengths=lengths) if lengths else windows(STEPS)
    trained(recording(recorded), data, loss_of)
    evaluation = recorded.evaluation()
    assert (accused(evaluation), evaluation.verdict) == ({}, "balanced")


@pytest.mark.parametrize(("steps", "divisor"), [(MICRO_BATCHES, MICRO_BATCHES), (1, None)])
def test_what_its_backward_divides_by_is_read(steps: int, divisor: int | None) -> None:
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.Accelerator(gradient_accumulation_steps=steps, cpu=True)
    assert divisor_of_accelerate() == divisor


def test_a_schedule_of_the_wrapped_optimizer_is_seen() -> None:
    """It is made after the optimizer was prepared, is not prepared itself, and steps too often."""
    accelerate.state.AcceleratorState._reset_state(True)
    recorded, model = Recording(), tiny_model()
    with recording(recorded):
        accelerator = accelerate.Accelerator(gradient_accumulation_steps=MICRO_BATCHES, cpu=True)
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
        for batch in chain.from_iterable(windows(STEPS, lengths=EQUAL)):
            with accelerator.accumulate(model):
                accelerator.backward(cross_entropy(model, batch))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    assert accused(recorded.evaluation()) == {"scheduler.step_every_microbatch": 1}


def test_the_tracker_records_evaluations_and_the_configuration(tmp_path: Path) -> None:
    from gradledger.integrations.accelerate import GradledgerTracker  # noqa: PLC0415

    accelerate.state.AcceleratorState._reset_state(True)
    model = tiny_model()
    with running_service(tmp_path / "runs.db") as service:
        tracker = GradledgerTracker(url=service.url)
        accelerator = accelerate.Accelerator(log_with=[tracker], cpu=True)
        accelerator.init_trackers("a project", {"batch_size": 2})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step, batch in enumerate(chain.from_iterable(windows(1))):
            accelerator.backward(cross_entropy(model, batch))
            optimizer.step()
            accelerator.log({"loss": 1.0, "eval_loss": torch.tensor(0.5)}, step=100 * step)
        accelerator.end_training()
        tracker.tracker.close()
        assert evaluations_of(tmp_path / "runs.db") == [
            ("eval_loss", step, 0.5) for step in (1, 2, 3, 4)
        ]
        assert config_of(tmp_path / "runs.db") == {"batch_size": 2}
