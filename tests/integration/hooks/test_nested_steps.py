"""Optimizers whose step calls the step of their base class, as Horovod's does: one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradledger.capture.step_sampling import StepSampler
from helpers.device import arrive_late
from helpers.training import (
    Batches,
    Recording,
    accused,
    cross_entropy,
    recording,
    tiny_model,
    windows,
)

STEPS = 6


def subclass(of: torch.optim.Optimizer, before: Callable[[Any], None]) -> torch.optim.Optimizer:
    """An optimizer of a class that is made at run time; ``before`` runs in its step."""
    base: Any = type(of)

    class Combining(base):  # type: ignore[misc]
        def step(self, closure: Callable[[], Any] | None = None) -> Any:
            before(self)
            return super().step(closure)

    made: torch.optim.Optimizer = Combining(of.param_groups)
    return made


def divide_by_k(optimizer: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad.div_(4)


def train(levels: int, closure: bool = False, sampler: StepSampler | None = None) -> Recording:
    """Means of equal micro-batches, which the outermost step divides by K."""
    net = tiny_model()
    with recording(step_sampler=sampler) as recorded:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for level in range(levels):
            divides = level == levels - 1 and not closure  # which runs inside the step
            optimizer = subclass(optimizer, divide_by_k if divides else lambda _: None)
        for window in windows(STEPS, lengths=[((6, 6),) * 4]):

            def evaluate(window: Batches = window) -> float:
                optimizer.zero_grad()
                for batch in window:
                    cross_entropy(net, batch).backward()
                return 0.0

            if closure:
                optimizer.step(evaluate)
            else:
                evaluate()
                optimizer.step()
    return recorded


@pytest.mark.parametrize("levels", [1, 2])
def test_a_step_inside_a_step_is_one_with_the_gradients_that_the_inner_one_applies(
    levels: int,
) -> None:
    recorded = train(levels)
    steps = recorded.records()
    assert [step.step for step in steps] == list(range(2, STEPS + 1)), "the first shows the nesting"
    assert [len(step.micro_batches) for step in steps] == [4] * (STEPS - 1)
    assert [step.post_factor for step in steps] == pytest.approx([1 / 4] * (STEPS - 1))
    evaluation = recorded.evaluation()
    assert (accused(evaluation), evaluation.verdict) == ({}, "balanced")


def test_a_closure_is_passed_on() -> None:
    recorded = train(1, closure=True)
    assert [len(step.micro_batches) for step in recorded.records()] == [4] * (STEPS - 1)
    assert not accused(recorded.evaluation()).keys() & {"loop.double_step", "loop.never_stepped"}


def test_steps_are_skipped_as_those_of_others() -> None:
    sampler = StepSampler(1e-12, first_steps=3, burst=1, longest_period=2)
    steps = train(1, sampler=sampler).records()
    assert [(step.step, len(step.micro_batches)) for step in steps] == [(2, 4), (3, 4), (5, 4)]


@pytest.mark.parametrize("late", [False, True])
def test_a_step_that_raises_is_not_taken_for_an_outer_one(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """The loop catches the error, and steps again: without memory, for example.

    ``late``: on a device, the sample of the step that raised was never sent.
    """
    if late:
        arrive_late(monkeypatch.setattr)
    net = tiny_model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        wrapped = torch.optim.SGD.step
        for number, window in enumerate(windows(4)):
            cross_entropy(net, window[0]).backward()
            if number == 1:
                optimizer.param_groups[0]["lr"] = "none"
                with pytest.raises(TypeError):
                    optimizer.step()
                optimizer.param_groups[0]["lr"] = 0.01
            optimizer.step()
            optimizer.zero_grad()
    assert torch.optim.SGD.step is wrapped
    assert {step.step for step in recorded.records()} >= {1, 3, 4}
    assert not any("could not be read" in str(step.missing) for step in recorded.records())


class Accumulating(torch.optim.Adadelta):
    """Steps in every fourth call; a call of ``zero_grad`` in between does nothing."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        if self.calls == 4:
            divide_by_k(self)
            self.apply()

    def apply(self) -> None:
        super().step()
        self.calls = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not self.calls:
            super().zero_grad(set_to_none)


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("hooked", [False, True])
def test_an_optimizer_that_accumulates_by_itself_steps_where_it_updates(
    skips: bool, hooked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch calls the hooks in the step of the base class once an instance of it exists."""
    step: Any = torch.optim.Adadelta.step  # another test may have created one
    unhooked = step.__wrapped__ if getattr(step, "hooked", False) else step
    monkeypatch.setattr(torch.optim.Adadelta, "step", unhooked)
    net = tiny_model()
    if hooked:
        torch.optim.Adadelta(net.parameters())
    sampler = StepSampler(1e-12, first_steps=2, burst=1, longest_period=2) if skips else None
    with recording(step_sampler=sampler) as recorded:
        optimizer = Accumulating(net.parameters(), lr=0.01)
        for window in windows(STEPS, lengths=[((6, 6),) * 4]):
            for batch in window:
                cross_entropy(net, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
    steps = recorded.records()
    assert {len(step.micro_batches) for step in steps} == {4}
    assert {step.step for step in steps} >= ({2, 3, 5} if skips else set(range(2, STEPS + 1)))
    evaluation = recorded.evaluation(optimizers=["Accumulating"])
    # without hooks, how its step changes the gradients before it applies them is not seen
    verdict = "balanced" if hooked else "incomplete"
    assert (accused(evaluation), evaluation.verdict) == ({}, verdict)


class Offloading(torch.optim.AdamW):
    """Its step does something else before that of its base class, on some days to the gradients."""

    changes: Callable[[Any], None] = staticmethod(lambda _: None)
    clears = False

    def step(self, closure: Any = None) -> Any:
        type(self).changes(self)
        super().step()
        if self.clears:
            self.zero_grad()


@pytest.mark.parametrize(
    ("changes", "clears", "factor"),
    [
        (lambda _: None, False, 1.0),
        (lambda _: None, True, None),  # what it stepped on cannot be read any more
        (divide_by_k, False, None),
    ],
)
def test_a_step_that_leaves_the_gradients_as_they_were_has_applied_them(
    changes: Callable[[Any], None],
    clears: bool,
    factor: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch calls no hook in the step of the base class, unless an instance of it exists."""
    unhooked: Any = torch.optim.AdamW.step
    unhooked = unhooked.__wrapped__ if getattr(unhooked, "hooked", False) else unhooked
    monkeypatch.setattr(torch.optim.AdamW, "step", unhooked)
    monkeypatch.setattr(Offloading, "changes", staticmethod(changes))
    monkeypatch.setattr(Offloading, "clears", clears)
    net = tiny_model()
    with recording() as recorded:
        optimizer = Offloading(net.parameters(), lr=0.01)
        for window in windows(STEPS, lengths=[((6, 6),) * 4]):
            for batch in window:
                (cross_entropy(net, batch) / 4).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [step.post_factor for step in recorded.records()] == [factor] * STEPS
    assert not accused(recorded.evaluation(optimizers=["Offloading"]))


class Passing(torch.optim.SGD):
    """Calls the step of its base class in each call."""

    def step(self, closure: Any = None) -> Any:
        """With or without gradients."""
        return super().step(closure)


def test_a_step_of_a_base_class_without_gradients_is_a_step() -> None:
    """No backward reaches its parameters, so there is nothing that it could accumulate."""
    net, unused = tiny_model(), torch.nn.Linear(2, 2)
    with recording() as recorded:
        optimizer = Passing(unused.parameters(), lr=0.01)
        for window in windows(STEPS):
            cross_entropy(net, window[0]).backward()
            optimizer.step()
            net.zero_grad()
    empty = [step.empty for step in recorded.records()]
    assert all(empty) and len(empty) >= STEPS - 1  # the first one shows which call is the inner one
    assert set(accused(recorded.evaluation(optimizers=["Passing"]))) == {"loop.no_gradients"}
