"""Observer effect zero: the same script gives the same bits with and without hooks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from helpers.training import (
    CLASSES,
    HIDDEN,
    INPUTS,
    Recording,
    cross_entropy,
    recording,
    steps_of,
    windows,
)

from .conftest import Ranks

STEPS = 20

Train = Callable[[AbstractContextManager[object]], list[Tensor]]


def model_with_dropout() -> nn.Module:
    """Dropout draws random numbers in every forward: hooks that draw one too are found out."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Dropout(0.3), nn.Linear(HIDDEN, CLASSES)
    )


def plain(watched: AbstractContextManager[object], steps: int = STEPS) -> list[Tensor]:
    """Accumulation, clipping, AdamW: everything that the run leaves behind."""
    model, losses = model_with_dropout(), []
    with watched:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for window in windows(steps):
            for batch in window:
                loss = cross_entropy(model, batch) / len(window)
                loss.backward()
                losses.append(loss.detach())
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return [*model.parameters(), *losses, torch.get_rng_state()]


def scaled(watched: AbstractContextManager[object], steps: int = STEPS) -> list[Tensor]:
    """fp16 autocast with a scaler that skips its first steps."""
    model = model_with_dropout()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)
    with watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for window in windows(steps):
            for batch in window:
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = cross_entropy(model, batch, reduction="sum") / len(window)
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return [*model.parameters(), torch.tensor(scaler.get_scale()), torch.get_rng_state()]


def test_a_warning_that_is_raised_inside_backward_shows_the_same_line() -> None:
    """``stacklevel`` counts frames: hook, engine, autograd.backward, Tensor.backward, script."""

    def line_shown() -> tuple[str, int]:
        weight = torch.ones(2, requires_grad=True)

        def hook(gradient: Tensor) -> None:
            warnings.warn("from a hook of the script", stacklevel=5)

        weight.register_hook(hook)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            weight.sum().backward()
        return caught[0].filename, caught[0].lineno

    alone = line_shown()
    with recording():
        assert line_shown() == alone
    assert alone[0] == __file__


@pytest.mark.parametrize("train", [plain, scaled])
def test_twenty_steps_end_in_the_same_bits(train: Train) -> None:
    recorded = Recording()
    watched, alone = train(recording(recorded)), train(nullcontext())
    assert [len(record.micro_batches) for record in recorded.records()] == [4] * STEPS
    for ours, theirs in zip(watched, alone, strict=True):
        assert torch.equal(ours, theirs)


def test_the_scaled_training_did_skip_steps() -> None:
    recorded = Recording()
    scaled(recording(recorded))
    skipped = [record.skipped for record in recorded.records()]
    assert skipped[0]
    assert not skipped[-1]


def test_twenty_steps_of_two_ranks_end_in_the_same_bits(two_ranks: Ranks) -> None:
    for rank in two_ranks:
        watched, alone = rank["twenty steps"]["watched"], rank["twenty steps"]["alone"]
        assert [len(r.micro_batches) for r in steps_of(rank["twenty steps"]["lines"])] == [4] * 20
        for ours, theirs in zip(watched, alone, strict=True):
            assert torch.equal(ours, theirs)
