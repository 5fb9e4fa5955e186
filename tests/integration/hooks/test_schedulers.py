"""Schedulers of the learning rate: PyTorch's, and classes that a script defines after the hooks."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    ReduceLROnPlateau,
    SequentialLR,
)

from helpers.training import cross_entropy, recording, tiny_model, tokens, windows

Make = Callable[[Optimizer], Any]


def halved(optimizer: Optimizer) -> LRScheduler:
    """A class of the script's that inherits ``step``."""

    class Halved(LRScheduler):
        def get_lr(self) -> list[float | Tensor]:
            return [group["lr"] / 2 for group in self.optimizer.param_groups]

    return Halved(optimizer)


def by_hand(optimizer: Optimizer) -> LRScheduler:
    """A scheduler that defines ``step`` and does not call that of the base class."""

    class ByHand(LambdaLR):
        def step(self, epoch: int | None = None) -> None:
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.9

    return ByHand(optimizer, lambda epoch: 1.0)


def by_super(optimizer: Optimizer) -> LRScheduler:
    """A scheduler whose ``step`` calls that of the base class."""

    class BySuper(ExponentialLR):
        def step(self, epoch: int | None = None) -> None:
            super().step()

    return BySuper(optimizer, 0.9)


def of_a_late_class(optimizer: Optimizer) -> LRScheduler:
    """A subclass of a class that was defined after the hooks, too; both define ``step``."""
    parent = type(by_super(optimizer))

    class Child(parent):  # type: ignore[misc, valid-type]
        def step(self, epoch: int | None = None) -> None:
            super().step()

    scheduler: LRScheduler = Child(optimizer, 0.9)
    return scheduler


def sequence(optimizer: Optimizer) -> LRScheduler:
    """Two in a row."""
    warm, then = ConstantLR(optimizer, 0.5, 2), ExponentialLR(optimizer, 0.9)
    return SequentialLR(optimizer, [warm, then], milestones=[2])


def chain(optimizer: Optimizer) -> LRScheduler:
    """Two at once."""
    return ChainedScheduler([ConstantLR(optimizer, 0.5, 2), ExponentialLR(optimizer, 0.9)])


def exponential(optimizer: Optimizer) -> LRScheduler:
    """PyTorch's own."""
    return ExponentialLR(optimizer, 0.9)


class OnPlateau:
    """It wants a metric."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._inner = ReduceLROnPlateau(optimizer)

    def step(self) -> None:
        """One call of the scheduler."""
        self._inner.step(1.0)


@pytest.mark.parametrize(
    "make",
    [exponential, sequence, chain, OnPlateau, halved, by_hand, by_super, of_a_late_class],
)
@pytest.mark.filterwarnings("ignore:The epoch parameter")  # by the SequentialLR of PyTorch 2.8
def test_one_call_is_one_event(make: Make) -> None:
    """Whatever schedulers step inside; as under ``gradledger run``, where hooks come first."""
    with recording() as recorded:
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        schedule = make(optimizer)
        for window in windows(4):
            count = sum(map(tokens, window))
            for batch in window:
                (cross_entropy(model, batch, reduction="sum") / count).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    events = [[e.op for e in record.events if e.op == "schedule"] for record in recorded.records()]
    assert events == [[], ["schedule"], ["schedule"], ["schedule"]]


def sent_of(
    make: Make, step: Callable[[Any, int], object] = lambda schedule, _: schedule.step()
) -> list[tuple[int | None, int | None]]:
    """``scheduled`` and ``schedule_total`` of five steps, each after one call of the schedule."""
    with recording() as recorded:
        model = tiny_model()
        schedule = make(optimizer := torch.optim.SGD(model.parameters(), lr=0.01))
        for number, (batch, *_) in enumerate(windows(5)):
            cross_entropy(model, batch).backward()
            step(schedule, number)
            optimizer.step()
            optimizer.zero_grad()
    return [(record.scheduled, record.schedule_total) for record in recorded.records()]


def down_in(total: int) -> Make:
    """A function of the step that ends at zero."""
    return lambda optimizer: LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))


def restarts(optimizer: Optimizer) -> LRScheduler:
    return CosineAnnealingWarmRestarts(optimizer, 2)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_where_a_schedule_is_and_where_it_ends_are_sent_if_they_can_be_read() -> None:
    cosine = sent_of(lambda optimizer: CosineAnnealingLR(optimizer, 3))
    assert cosine == [(n, 3) for n in range(1, 6)]
    assert [total for _, total in sent_of(down_in(4))] == [None, None, None, 4, 4]
    assert sent_of(lambda optimizer: LinearLR(optimizer, total_iters=2))[-1] == (5, None)
    assert sent_of(lambda optimizer: LinearLR(optimizer, 1.0, 0.1, total_iters=2))[-1] == (5, 2)
    assert sent_of(lambda optimizer: CyclicLR(optimizer, 0.01, 0.1))[-1] == (None, None)
    assert sent_of(restarts)[-1] == (5, None)
    by_epoch = sent_of(restarts, lambda schedule, number: schedule.step(number / 5))
    assert by_epoch[-1] == (None, None)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_schedule_by_epoch_is_seen_through_a_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a program, or another tool, may wrap it."""
    original = CosineAnnealingWarmRestarts.step

    @functools.wraps(original)
    def decorated(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)

    monkeypatch.setattr(CosineAnnealingWarmRestarts, "step", decorated)
    by_epoch = sent_of(restarts, lambda schedule, number: schedule.step(number / 5))
    assert by_epoch[-1] == (None, None)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_decorated_step_may_wrap_what_is_no_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a partial function: the hooks start, and its calls are counted."""
    original = functools.partial(LinearLR.step)

    def decorated(scheduler: LinearLR) -> None:
        original(scheduler)

    decorated.__wrapped__ = original  # type: ignore[attr-defined]
    monkeypatch.setattr(LinearLR, "step", decorated, raising=False)
    assert sent_of(lambda optimizer: LinearLR(optimizer, total_iters=2))[-1] == (5, None)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_what_is_sent_is_of_the_schedule_that_stepped_last() -> None:
    """As of the second phase of a training, whose schedule is another one."""
    schedules: list[LRScheduler] = []

    def make(optimizer: Optimizer) -> LRScheduler:
        schedules.extend(CosineAnnealingLR(optimizer, total) for total in (2, 8))
        return schedules[0]

    sent = sent_of(make, lambda _, number: schedules[number // 3].step())
    assert sent == [(1, 2), (2, 2), (3, 2), (1, 8), (2, 8)]


def test_a_class_that_is_defined_between_steps_is_observed_from_its_first_object_on() -> None:
    with recording() as recorded:
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        schedule = exponential(optimizer)
        for number, window in enumerate(windows(5)):
            if number == 2:
                schedule = by_hand(optimizer)
            for batch in window:
                cross_entropy(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    counts = [[e.op for e in r.events].count("schedule") for r in recorded.records()]
    assert counts == [0, 1, 2, 1, 1]  # the third window holds the first step of a new scheduler


def test_a_warning_shows_the_line_of_the_script() -> None:
    def run() -> str:
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        schedule = exponential(optimizer)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            schedule.step()  # before optimizer.step(): PyTorch warns
        return caught[0].filename

    alone = run()
    with recording():
        assert run() == alone


def test_classes_are_whole_again_without_the_hooks() -> None:
    class Late(LambdaLR):
        def step(self, epoch: int | None = None) -> None:
            super().step()

    own = Late.__dict__["step"]
    with recording():
        Late(torch.optim.SGD(tiny_model().parameters(), lr=0.01), lambda epoch: 1.0)
        assert Late.__dict__["step"] is not own
    assert Late.__dict__["step"] is own


def test_a_learning_rate_that_is_a_tensor_is_recorded() -> None:
    """As compiled optimizers and torchao's want it."""
    model, rate = tiny_model(), torch.tensor(0.5)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for window in windows(2):
            cross_entropy(model, window[0]).backward()
            optimizer.step()
            rate /= 2
    assert [record.lr for record in recorded.records()] == [0.5, 0.25]


@pytest.mark.parametrize("kind", [float, np.float64, np.float32, torch.tensor])
@pytest.mark.parametrize(("every", "moves"), [(1, 3), (4, 0)])
def test_moves_of_the_rate_between_micro_batches_are_counted(
    every: int, moves: int, kind: Callable[[float], Any]
) -> None:
    model = tiny_model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, batch in enumerate(batch for window in windows(3) for batch in window):
            optimizer.param_groups[0]["lr"] = kind(0.1 / (1 + number // every))
            (cross_entropy(model, batch) / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    assert [record.rate_moves for record in recorded.records()] == [moves] * 3


@pytest.mark.parametrize(
    ("maximize", "patience", "sent"),
    [(False, 3, (0.5, "max")), (True, 3, (0.5, None)), (False, 100, (None, "max"))],
)
def test_a_plateau_sends_its_metric_and_which_values_are_better(
    maximize: bool, patience: int, sent: tuple[float | None, str | None]
) -> None:
    """Unless the optimizer maximises: then a larger loss is better, too."""
    with recording() as recorded:
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=maximize)
        schedule = ReduceLROnPlateau(optimizer, mode="max", patience=patience)
        for window in windows(2):
            cross_entropy(model, window[0]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step(0.5)
    events = [event for record in recorded.records() for event in record.events]
    assert [(e.metric, e.mode) for e in events if e.op == "schedule"] == [sent]
    assert {record.maximises for record in recorded.records()} == {maximize}


AGAIN = {  # how the second optimizer differs: the steps that are noted with a schedule of the first
    "created again": range(1, 11),
    "of more parameters": range(1, 11),
    "steps first": (),
    "own schedule": (),
    "created first": (),
    "of another class": (),
    "a head each": (),
    "its rate moves": range(1, 4),
    "run to show its rates": (),
}


@pytest.mark.parametrize("how", AGAIN)
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_schedule_of_an_optimizer_that_was_created_again(how: str) -> None:
    model, heads = tiny_model(), [nn.Linear(2, 2), nn.Linear(2, 2)]
    body = list(model.parameters())
    with recording() as recorded:
        first = torch.optim.SGD([*body, *(heads[0].parameters() if how == "a head each" else ())])
        more = [*heads[1].parameters()] if how in ("a head each", "of more parameters") else []
        kind = torch.optim.Adam if how == "of another class" else torch.optim.SGD
        optimizer: Optimizer = kind([*body, *more])
        if how == "created first":
            first, optimizer = optimizer, first  # type: ignore[assignment]
        schedulers = [exponential(first)]
        if how == "own schedule":
            schedulers.append(exponential(optimizer))
        for number, (batch, *_) in enumerate(windows(11)):
            each = first if how == "steps first" and number == 0 else optimizer
            each.zero_grad()
            cross_entropy(model, batch).backward()
            if how == "its rate moves" and number > 3:
                optimizer.param_groups[0]["lr"] = 0.01
            each.step()
            for scheduler in schedulers * (5 if how == "run to show its rates" else 1):
                scheduler.step()
    records = recorded.records(optimizer=how == "steps first")
    counts = [record.elsewhere for record in records if record.elsewhere]
    assert counts == list(AGAIN[how])


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_calls_of_an_optimizer_that_waits_are_its_own() -> None:
    """Findings on the schedule point at its step; those on the waiting one at its backward."""
    model = tiny_model()
    with recording() as recorded:
        waiting = torch.optim.SGD(model.parameters())
        scheduler = exponential(waiting)
        optimizer = torch.optim.SGD(model.parameters())
        for number, (batch, *_) in enumerate(windows(11)):
            model.zero_grad()
            cross_entropy(model, batch).backward()
            (optimizer if number < 8 else waiting).step()
            scheduler.step()
    roles = [
        {call.role for record in recorded.records(optimizer=each) for call in record.code}
        for each in (0, 1)
    ]
    assert all({"backward", "step", "schedule"} <= each for each in roles)
