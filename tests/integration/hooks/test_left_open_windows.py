"""Backwards that no step follows until the process ends, and loops that only look like it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gradledger.records import LeftOpen, StepRecord
from helpers.updates import recorded_to_the_end

MANY = 65


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def backward(model: nn.Module, factor: float = 1.0) -> None:
    (model(torch.ones(3, 4)).square().mean() * factor).backward()


def records_of(recording: Any) -> list[StepRecord]:
    return [step.resolve() for step in recording.steps]


def test_many_backwards_without_a_step_are_counted() -> None:
    with recorded_to_the_end() as recording:
        model, optimizer = model_and_optimizer()
        for number in range(MANY):
            optimizer.zero_grad()
            backward(model, float("nan") if number == 3 else 1.0)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    (record,) = records_of(recording)
    assert record.skipped and not record.micro_batches
    assert record.left_open is not None
    assert vars(record.left_open) == vars(
        LeftOpen(MANY, MANY - 1, nonfinite=1, norms=MANY, nonfinite_norms=1)
    )


def test_few_backwards_are_the_rest_of_an_epoch() -> None:
    with recorded_to_the_end() as recording:
        model, optimizer = model_and_optimizer()
        for _ in range(MANY - 1):
            backward(model)
    assert optimizer is not None and not recording.steps


def test_steps_that_stop_are_reported_far_above_the_usual_window() -> None:
    for accumulated, is_reported in ((1, True), (16, False)):
        with recorded_to_the_end() as recording:
            model, optimizer = model_and_optimizer()
            for _ in range(3):
                for _ in range(accumulated):
                    backward(model)
                optimizer.step()
                optimizer.zero_grad()
            for _ in range(MANY):
                backward(model)
        last = records_of(recording)[-1]
        assert (last.left_open is not None) is is_reported
        assert last.step == 3 + is_reported


def test_parameters_that_the_loop_updates_itself_need_no_step() -> None:
    with recorded_to_the_end() as recording:
        model, optimizer = model_and_optimizer()
        for _ in range(MANY):
            optimizer.zero_grad()
            backward(model)
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data -= 0.1 * parameter.grad
    assert all(record.left_open is None for record in records_of(recording))


def test_an_optimizer_may_wait_for_another_one() -> None:
    with recorded_to_the_end() as recording:
        critic, waiting = model_and_optimizer()
        generator, optimizer = model_and_optimizer()
        for _ in range(MANY):
            (generator(torch.ones(3, 4)).sum() + critic(torch.ones(3, 4)).sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert waiting is not None
    assert all(record.left_open is None for record in records_of(recording))
