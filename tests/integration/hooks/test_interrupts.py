"""Ctrl-C, the garbage collector and other threads, exactly while the hooks run."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradledger.capture import recorder as recorders
from gradledger.capture.gradient_probe import GradientProbe
from gradledger.capture.recorder import Recorder
from gradledger.capture.windows import OpenWindows
from gradledger.delivery.pipeline import _signals_blocked
from gradledger.observers.grad_scaler import GradScalerCalls
from helpers.interrupts import when_called, when_returning
from helpers.patience import HANGS
from helpers.training import Batches, accused, cross_entropy, recording, tiny_model, tokens, windows


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def step(
    model: nn.Module, window: Batches, optimizer: torch.optim.Optimizer, scaler: Any = None
) -> None:
    """One window of a right loop."""
    count = sum(map(tokens, window))
    for batch in window:
        loss = cross_entropy(model, batch, reduction="sum") / count
        (scaler.scale(loss) if scaler else loss).backward()
    if scaler:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("function", [OpenWindows.begin_backward, OpenWindows.end_backward])
def test_a_loop_that_is_interrupted_and_run_again_is_measured(
    function: Callable[..., Any],
) -> None:
    """As in a notebook: the cell is interrupted, and another one trains on."""
    data = windows(5)
    with recording() as recorded:
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        step(model, data[0], optimizer)
        with pytest.raises(KeyboardInterrupt), when_returning(function, interrupt):
            step(model, data[1], optimizer)
        optimizer.zero_grad()
        for window in data[2:]:
            step(model, window, optimizer)
    records = recorded.records()[-2:]
    assert [len(record.micro_batches) for record in records] == [4, 4]
    assert all(len(m.terms) == 1 for record in records for m in record.micro_batches)


def test_a_scaler_that_is_interrupted_is_still_seen_to_unscale() -> None:
    first, second = windows(2)
    with recording() as recorded:
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with (
            pytest.raises(KeyboardInterrupt),
            when_returning(GradScalerCalls._before_step, interrupt),
        ):
            step(model, first, optimizer, scaler)
        optimizer.zero_grad()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        step(model, second, optimizer, scaler)
    (record,) = recorded.records()
    assert [event.op for event in record.events].count("unscale") == 2


def test_an_optimizer_may_be_collected_while_its_gradients_are_read(swallowed: Any) -> None:
    with recording() as recorded:
        model = tiny_model()
        dropped = [torch.optim.SGD(model.parameters(), lr=0.01)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def collect() -> None:
            dropped.clear()
            gc.collect()

        first, *others = windows(3)
        with when_called(GradientProbe.copy, collect):
            step(model, first, optimizer)
        for window in others:
            step(model, window, optimizer)
    assert not swallowed
    assert accused(recorded.evaluation()) == {}
    assert recorded.evaluation().verdict == "balanced"


class Blocking(torch.optim.SGD):
    """Blocks any thread that reads its groups, as a device that hangs blocks a launch."""

    blocked: threading.Event | None = None

    def __init__(self, parameters: Any) -> None:
        self.go_on = threading.Event()
        super().__init__(parameters, lr=0.1)

    @property
    def param_groups(self) -> Any:
        if self.blocked is not None and threading.current_thread() is not threading.main_thread():
            self.blocked.set()
            self.go_on.wait()
        return self.groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self.groups = groups


def test_the_end_does_not_wait_for_a_hook_that_is_blocked_on_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorders, "FINISH_SECONDS", 0.01)
    model = tiny_model()
    recorder = Recorder(lambda _: None)
    recorder.install()
    optimizer = Blocking(model.parameters())
    (window,) = windows(1)
    cross_entropy(model, window[0]).backward()
    optimizer.blocked = threading.Event()
    training = threading.Thread(target=optimizer.step, daemon=True)
    training.start()
    assert optimizer.blocked.wait(HANGS)
    ending = threading.Thread(target=recorder.finish, daemon=True)
    ending.start()
    ending.join(HANGS)
    waits = ending.is_alive()
    optimizer.go_on.set()
    training.join()
    recorder.uninstall()
    assert not waits


class Interrupted(Exception):
    """What a signal handler of the script raises."""


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_handler_that_raises_while_signals_are_blocked_leaves_none_blocked(call: int) -> None:
    """``pthread_sigmask`` changes the mask, then runs handlers of signals that have come."""
    calls = 0

    def profile(_: Any, event: str, function: Any) -> None:
        nonlocal calls
        if event == "c_return" and getattr(function, "__name__", "") == "pthread_sigmask":
            calls += 1
            if calls == call:
                raise Interrupted

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with pytest.raises(Interrupted):
            sys.setprofile(profile)
            try:
                with _signals_blocked():
                    pass
            finally:
                sys.setprofile(None)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
