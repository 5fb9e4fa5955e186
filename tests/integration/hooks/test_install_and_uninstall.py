"""Attach twice, detach, attach again: nothing piles up, everything is restored."""

from __future__ import annotations

import contextlib
import gc
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.parallel.distributed as parallel
from torch import nn
from torch.nn.utils import clip_grad
from torch.nn.utils import clip_grads_with_norm_ as clips
from torch.optim import lr_scheduler
from torch.optim import optimizer as optimizers

from gradledger.capture import windows as capture
from gradledger.capture.recorder import Recorder
from helpers.training import (
    Batches,
    Recording,
    accused,
    cross_entropy,
    recording,
    tiny_model,
    tokens,
    windows,
)

OWNERS: list[Any] = [
    torch,
    torch.autograd,
    torch.autograd.graph,
    torch.Tensor,
    torch.amp.GradScaler,
    torch.amp.grad_scaler,
    torch.nn.Module,
    torch.nn.functional,
    torch.nn.utils,
    clip_grad,
    torch.optim,
    torch.optim.Optimizer,
    torch.optim.SGD,
    optimizers,
    torch.distributed,
    parallel.DistributedDataParallel,
    *(c for c in vars(lr_scheduler).values() if inspect.isclass(c) and hasattr(c, "get_lr")),
]
HOOKS: list[dict[Any, Any]] = [
    optimizers._global_optimizer_pre_hooks,
    optimizers._global_optimizer_post_hooks,
    nn.modules.module._global_forward_hooks,
    nn.modules.module._global_forward_pre_hooks,
    nn.modules.module._global_backward_hooks,
    nn.modules.module._global_backward_pre_hooks,
]


def pytorch() -> dict[str, Any]:
    """Every attribute of everything that hooks could have touched."""
    named = {f"{o.__name__}.{name}": value for o in OWNERS for name, value in vars(o).items()}
    decorated = {f"body of {f.__name__}": f for f in (clips, clip_grad.clip_grad_value_)}
    cells = {name: inspect.getclosurevars(f).nonlocals["func"] for name, f in decorated.items()}
    return named | cells


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """PyTorch is after each test what it was before: the same objects, and no hook."""
    train(windows(1))  # PyTorch itself puts some things in place on first use
    before = pytorch()
    yield
    after = pytorch()
    assert [name for name in before if before[name] is not after.get(name)] == []
    assert [hooks for hooks in HOOKS if hooks] == []


def train(data: list[Batches], model: nn.Module | None = None) -> None:
    """sum / N, clipped."""
    model = tiny_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        count = sum(map(tokens, window))
        for batch in window:
            (cross_entropy(model, batch, reduction="sum") / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


def test_hooks_are_in_place_and_gone_afterwards() -> None:
    before = pytorch()
    with recording():
        during = pytorch()
        assert {name for name in before if before[name] is not during[name]} > {
            "torch.autograd.backward",
            "Optimizer.__init__",
            "GradScaler.scale",
            "GradScaler.step",
            "body of _clip_grads_with_norm_",
            "DistributedDataParallel._pre_forward",
        }


def test_attached_twice_records_once() -> None:
    recorded = Recording()
    recorder = Recorder(recorded.steps.append)
    recorder.install()
    recorder.install()
    train(windows(3))
    recorder.uninstall()
    assert [len(record.micro_batches) for record in recorded.records()] == [4, 4, 4]


def test_detached_twice_and_attached_again_records_again() -> None:
    recorded = Recording()
    recorder = Recorder(recorded.steps.append)
    for _ in range(2):
        recorder.install()
        train(windows(2))
        recorder.uninstall()
        recorder.uninstall()
    assert len(recorded.steps) == 4
    assert [
        f.ledger.balance for i in (0, 1) for f in recorded.facts(i) if f.ledger
    ] == pytest.approx([1] * 4)


def test_nothing_is_recorded_once_detached() -> None:
    with recording() as recorded:
        train(windows(2))
    train(windows(2))
    assert len(recorded.steps) == 2


def test_attached_in_the_middle_of_a_window_accuses_nobody() -> None:
    """The first window is only partly seen: that it cannot know, so it must not judge."""
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with contextlib.ExitStack() as stack:
        recorded = Recording()
        for number, window in enumerate(windows(3)):
            count = sum(map(tokens, window))
            for index, batch in enumerate(window):
                if (number, index) == (0, 2):
                    stack.enter_context(recording(recorded))
                (cross_entropy(model, batch, reduction="sum") / count).backward()
            optimizer.step()
            optimizer.zero_grad()
    first, second, third = recorded.facts()
    assert first.ledger is None
    assert [f.ledger.balance for f in (second, third) if f.ledger] == pytest.approx([1, 1])
    assert accused(recorded.evaluation()) == {}


def test_detaching_under_a_wrapper_of_somebody_else_goes_silent() -> None:
    """Their wrapper holds ours: it cannot be taken out, so it must do nothing."""
    recorded = Recording()
    recorder = Recorder(recorded.steps.append)
    genuine = torch.autograd.backward
    recorder.install()
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ours = torch.autograd.backward
    calls = []

    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return ours(*args, **kwargs)

    torch.autograd.backward = theirs
    try:
        recorder.uninstall()
        assert torch.autograd.backward is theirs
        for window in windows(3):
            for batch in window:
                cross_entropy(model, batch).backward()
            optimizer.step()
    finally:
        torch.autograd.backward = genuine
    assert len(calls) == 12
    assert recorded.steps == []
    assert [track for track in recorder.windows if track.micro_batches] == []


def test_two_recorders_may_leave_in_the_order_in_which_they_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second put the first one's wrappers back: they must do nothing."""
    for owner in OWNERS:  # which are cleared away after the test
        for name, value in list(vars(owner).items()):
            if (callable(value) and not name.startswith("__")) or name == "__init__":
                monkeypatch.setattr(owner, name, value)
    first, second = Recording(), Recording()
    recorders = [Recorder(first.steps.append), Recorder(second.steps.append)]
    for recorder in recorders:
        recorder.install()
    train(windows(1))
    for recorder in recorders:
        recorder.uninstall()
    train(windows(1))
    assert (len(first.steps), len(second.steps)) == (1, 1)


def test_three_hundred_steps_leave_nothing_behind() -> None:
    """With the cycle collector off, what a step makes must die by itself."""
    model = tiny_model()
    data = windows(3)
    dropped: list[weakref.ref[Any]] = []
    recorder = Recorder(lambda step: dropped.append(weakref.ref(step)))
    recorder.install()
    train(data, model)  # what is made once is made now
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(100):
            for window in data:
                for batch in window:
                    cross_entropy(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
        after = len(gc.get_objects())
    finally:
        gc.enable()
        recorder.uninstall()
    assert len(dropped) == 303
    assert [ref for ref in dropped if ref() is not None] == []
    assert after - before < 500  # of them 303 are the references that this test keeps


def test_a_loop_that_never_steps_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_OPEN_MICRO_BATCHES", 256)
    model = tiny_model()
    (batch, *_), *_ = windows(1)
    with recording():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        objects: list[int] = []
        for index in range(700):
            cross_entropy(model, batch).backward()
            if index in (599, 699):  # after all limits
                gc.collect()
                objects.append(len(gc.get_objects()))
    assert objects[1] - objects[0] < 100
    del optimizer
