"""What the first step of a resumed training sends about the states that were loaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from gradledger.capture.open_records import OpenStep
from gradledger.capture.recorder import Recorder
from gradledger.records import LeftOpen, Resumed, StepRecord

PLANNED, SAVED = 20, 8

Schedule = Callable[[torch.optim.Optimizer], Any]


def cosine(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, PLANNED)


def in_turn(optimizer: torch.optim.Optimizer) -> Any:
    parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.StepLR(optimizer, 100)]
    return lr_scheduler.SequentialLR(optimizer, parts, [4])


def by_function(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / PLANNED)


def setup(schedule: Schedule, kind: Any = torch.optim.Adam) -> dict[str, Any]:
    """A model with its optimizer and schedule."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = kind(model.parameters(), lr=0.01)
    return {"model": model, "optimizer": optimizer, "schedule": schedule(optimizer)}


def train(parts: dict[str, Any], steps: int) -> None:
    """Train for some steps."""
    for _ in range(steps):
        parts["optimizer"].zero_grad()
        parts["model"](torch.randn(8, 4)).square().mean().backward()
        parts["optimizer"].step()
        parts["schedule"].step()


def resumed(
    loaded: str, schedule: Schedule = cosine, kind: Any = torch.optim.Adam, steps: int = 12
) -> list[StepRecord]:
    """The records of a training that continues with the states of the parts in ``loaded``."""
    first = setup(schedule, kind)
    train(first, SAVED)
    states = {name: part.state_dict() for name, part in first.items()}
    closed: list[OpenStep] = []
    recorder = Recorder(closed.append)
    recorder.install()
    try:
        parts = setup(schedule, kind)
        for name in loaded.split():
            parts[name].load_state_dict(states[name])
        train(parts, steps)
        recorder.finish()
    finally:
        recorder.uninstall()
    return [step.resolve() for step in closed]


def at_first(sent: list[StepRecord]) -> Resumed | None:
    assert all(record.resumed is None for record in sent[1:])
    return sent[0].resumed


def left_open(sent: list[StepRecord]) -> LeftOpen | None:
    return sent[-1].left_open


# SequentialLR passes an epoch to its parts, of which PyTorch 2.6 warns
@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
@pytest.mark.parametrize("schedule", [cosine, in_turn, by_function])
def test_the_state_of_a_schedule_is_loaded_and_that_of_its_optimizer_is_not(
    schedule: Schedule,
) -> None:
    first = at_first(resumed("model schedule", schedule))
    assert first is not None and not first.loaded
    assert first.schedule == SAVED
    assert first.empty == pytest.approx(1000)


def test_an_optimizer_without_averages_loses_none() -> None:
    first = at_first(resumed("model schedule", kind=torch.optim.SGD))
    assert first is not None and first.empty is None


def test_all_states_are_loaded() -> None:
    sent = resumed("model optimizer schedule")
    first = at_first(sent)
    assert first is not None
    assert (first.loaded, first.steps, first.under_schedule) == (True, SAVED, True)
    assert (first.schedule, first.empty) == (SAVED, None)
    assert left_open(sent) is None


def test_the_schedule_begins_anew_and_its_plan_counts_all_steps() -> None:
    sent = resumed("model optimizer")
    first, left = at_first(sent), left_open(sent)
    assert first is not None and first.schedule is None
    assert first.lr == pytest.approx(0.005 * (1 + math.cos(math.pi * SAVED / PLANNED)))
    assert [record.scheduled for record in sent[:3]] == [None, 1, 2]
    assert left is not None
    assert (left.planned, left.scheduled, left.resumed) == (PLANNED, PLANNED - SAVED, SAVED)


def test_a_training_that_ends_elsewhere_shows_nothing() -> None:
    assert left_open(resumed("model optimizer", steps=9)) is None


def test_the_weights_alone_are_loaded() -> None:
    assert at_first(resumed("model")) is None


def test_everything_is_restored() -> None:
    before = {
        kind: vars(kind).get("load_state_dict")
        for kind in vars(lr_scheduler).values()
        if isinstance(kind, type)
    }
    resumed("model")
    after = {kind: vars(kind).get("load_state_dict") for kind in before}
    assert before == after


@pytest.mark.parametrize(("momentum", "moved"), [(0.9, True), (0.0, False)])
def test_an_optimizer_that_counts_no_steps_shows_that_its_rate_had_moved(
    momentum: float, moved: bool
) -> None:
    sgd = partial(torch.optim.SGD, momentum=momentum)
    first = at_first(resumed("model optimizer", kind=sgd))
    assert first is not None
    assert (first.steps, first.under_schedule, first.moved) == (None, True, moved)


def test_a_rate_that_its_schedule_has_not_changed_yet_has_not_moved() -> None:
    sgd = partial(torch.optim.SGD, momentum=0.9)
    constant = partial(lr_scheduler.StepLR, step_size=100)
    first = at_first(resumed("model optimizer", constant, sgd))
    assert first is not None and not first.moved
