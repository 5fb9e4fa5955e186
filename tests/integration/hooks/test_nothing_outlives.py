"""Nothing of the script's lives longer because of the hooks."""

from __future__ import annotations

import gc
import sys
import weakref

import torch
from torch import nn

from gradledger.capture.isolation import isolated
from gradledger.capture.recorder import Recorder
from helpers.training import cross_entropy, recording, tiny_model, windows


def references(model: nn.Module) -> list[weakref.ref[torch.Tensor]]:
    """Weak references to all parameters and gradients."""
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    return [weakref.ref(tensor) for tensor in (*parameters, *gradients)]


def alive(watches: list[weakref.ref[torch.Tensor]]) -> int:
    """How many are still there."""
    gc.collect()
    return sum(watch() is not None for watch in watches)


def test_a_dropped_training_is_gone_at_once() -> None:
    """While the hooks stay, and nothing else is made that could take its place."""
    with recording():
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in windows(3):
            for batch in window:
                cross_entropy(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        cross_entropy(model, windows(1)[0][0]).backward()  # a window that stays open
        watches = references(model)
        del model, optimizer
        assert alive(watches) == 0


def test_gradients_that_are_zeroed_without_a_step_are_gone() -> None:
    with recording():
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        cross_entropy(model, windows(1)[0][0]).backward()
        watches = references(model)
        assert alive(watches) == 8
        optimizer.zero_grad()
        assert alive(watches) == 4


def test_parameters_that_leave_the_optimizer_are_gone() -> None:
    with recording():
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        cross_entropy(model, windows(1)[0][0]).backward()
        optimizer.step()
        watches = references(model)
        optimizer.param_groups[0]["params"] = []
        del model
        assert alive(watches) == 0


def test_many_trials_leave_no_tensor_behind() -> None:
    """As a search over hyperparameters makes them, in one process."""
    recorder = Recorder(lambda step: None)
    recorder.install()
    try:
        counts = []
        for trial in range(60):
            model = tiny_model(trial)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            for batch in windows(1)[0]:
                cross_entropy(model, batch).backward()
            optimizer.step()
            del model, optimizer
            if trial % 20 == 19:
                gc.collect()
                counts.append(sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()))
    finally:
        recorder.uninstall()
    assert counts == [counts[0]] * len(counts)


def test_the_hooks_free_no_reference_of_none() -> None:
    """Freeing None ends the process. Since Python 3.12, None has no number of references."""
    before = sys.getrefcount(None)
    for _ in range(1000):
        with isolated():
            pass
    assert abs(sys.getrefcount(None) - before) < 100
