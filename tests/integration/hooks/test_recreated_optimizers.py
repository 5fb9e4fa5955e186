"""Optimizers that replace each other over the same parameters, and what each begins with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradledger.capture.open_records import OpenStep
from gradledger.capture.recorder import Recorder
from gradledger.records import Replaced

Create = Callable[[nn.Module, int, Any], torch.optim.Optimizer]


def replaced(
    create: Create, between: Callable[[nn.Module], None] = lambda model: None, steps: int = 2
) -> list[Replaced | None]:
    """What is sent at the first step of each of six optimizers of ``steps`` steps."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    closed: list[OpenStep] = []
    recorder = Recorder(closed.append)
    recorder.install()
    last: Any = None
    try:
        for phase in range(6):
            last = create(model, phase, last)
            for _ in range(steps):
                last.zero_grad()
                model(torch.randn(8, 4)).square().mean().backward()
                last.step()
            between(model)
    finally:
        recorder.uninstall()
    return [step.resolve().replaced for step in closed if step.step == 1]


def adam(model: nn.Module, phase: int, last: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def momentum(model: nn.Module, phase: int, last: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.75)


def lower_rate(model: nn.Module, phase: int, last: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3 * 0.5**phase)


def rate_on_the_device(model: nn.Module, phase: int, last: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3))


def in_a_row(sent: list[Replaced | None]) -> list[int]:
    return [0 if each is None else each.in_a_row for each in sent]


@pytest.mark.parametrize(
    ("create", "horizon"),
    [(adam, 1000), (momentum, 4), (lower_rate, 1000), (rate_on_the_device, 1000)],
)
@pytest.mark.parametrize("steps", [1, 2])
def test_each_that_begins_without_the_state_of_the_one_before_is_counted(
    create: Create, horizon: int, steps: int
) -> None:
    sent = replaced(create, steps=steps)
    assert in_a_row(sent) == [0, 0, 1, 2, 3, 4]
    last = sent[-1]
    assert last is not None and last.steps == steps
    assert last.horizon == pytest.approx(horizon)


def loads(model: nn.Module, phase: int, last: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if last is not None:
        optimizer.load_state_dict(last.state_dict())
    return optimizer


def copies(model: nn.Module, phase: int, last: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if last is not None:
        optimizer.state = last.state
    return optimizer


def plain(model: nn.Module, phase: int, last: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def decoupled(model: nn.Module, phase: int, last: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.1 * phase)


@pytest.mark.parametrize("create", [loads, copies, plain, decoupled])
def test_a_state_that_is_restored_or_is_of_other_settings_is_not_lost(create: Create) -> None:
    assert in_a_row(replaced(create)) == [0] * 6


@torch.no_grad()
def average(model: nn.Module) -> None:
    """As a server does: past the version of the parameters."""
    for parameter in model.parameters():
        parameter.data.mul_(0.5)


def test_parameters_that_are_changed_in_between_begin_another_course() -> None:
    assert in_a_row(replaced(adam, average)) == [0] * 6
    once = iter([False, False, False, True, False, False])
    sent = replaced(adam, lambda model: average(model) if next(once) else None)
    assert in_a_row(sent) == [0, 0, 1, 2, 0, 1]


def of_two_groups(model: nn.Module, phase: int, last: Any) -> torch.optim.Optimizer:
    groups = [{"params": [parameter]} for parameter in model.parameters()]
    return torch.optim.Adam(groups, lr=1e-3)


@pytest.mark.parametrize(("create", "rate"), [(adam, 1e-3), (of_two_groups, None)])
def test_the_rate_of_the_optimizer_before_is_sent_if_it_has_one_group(
    create: Create, rate: float | None
) -> None:
    first, *later = replaced(create)
    assert first is None
    assert [each and each.lr for each in later] == [rate] * 5
