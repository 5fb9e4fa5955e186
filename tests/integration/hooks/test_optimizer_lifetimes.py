"""Several optimizers over the life of one process: created, copied, restored and dropped."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable

import pytest
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from gradledger.capture.recorder import Recorder
from helpers.training import (
    Batches,
    Recording,
    accused,
    cross_entropy,
    judged,
    recording,
    tiny_model,
    tokens,
    windows,
)

Trained = tuple[nn.Module, Optimizer]


def created() -> Trained:
    """A new model and a new optimizer."""
    model = tiny_model()
    return model, SGD(model.parameters(), lr=0.01)


def train(trained: Trained, data: list[Batches]) -> None:
    """The mean over the tokens of each window."""
    model, optimizer = trained
    for window in data:
        count = sum(map(tokens, window))
        for batch in window:
            (cross_entropy(model, batch, reduction="sum") / count).backward()
        optimizer.step()
        optimizer.zero_grad()


def steps(recorded: Recording) -> list[tuple[int, int]]:
    """The index of the optimizer and the number of each step, in order."""
    return [(step.optimizer, step.step) for step in recorded.steps]


def balances(recorded: Recording, optimizer: int) -> list[float | None]:
    """The balance of each step; None where it was not measured."""
    facts = recorded.facts(optimizer)
    return [round(fact.ledger.balance, 3) if fact.ledger else None for fact in facts]


def test_optimizers_that_follow_each_other_are_numbered_and_measured_separately() -> None:
    with recording() as recorded:
        for seed in range(3):
            train(created(), windows(2, seed))
    assert steps(recorded) == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]
    assert [balances(recorded, optimizer) for optimizer in range(3)] == [[1, 1]] * 3
    assert recorded.evaluation().verdict == "balanced"


def test_optimizers_are_numbered_by_their_first_steps() -> None:
    recorded = Recording()
    recorder = Recorder(recorded.steps.append)
    recorder.install()
    model = tiny_model()
    first_created, never_steps = AdamW(model.parameters(), lr=0.01), created()
    train(created(), windows(2))
    train((model, first_created), windows(1))
    train(created(), windows(1))
    recorder.uninstall()
    assert steps(recorded) == [(0, 1), (0, 2), (1, 1), (2, 1)]
    assert recorder.windows.names == ["SGD", "AdamW", "SGD"]
    del never_steps


def test_an_optimizer_that_is_created_after_steps_of_another_is_measured_beside_it() -> None:
    with recording() as recorded:
        first = created()
        train(first, windows(2))
        second = created()
        for window in windows(3):
            train(first, [window])
            train(second, [window])
    assert [balances(recorded, optimizer) for optimizer in (0, 1)] == [[1] * 5, [1] * 3]
    assert recorded.evaluation().verdict == "balanced"


@pytest.mark.parametrize("drop", [True, False])
def test_an_optimizer_may_train_the_parameters_of_an_earlier_one(drop: bool) -> None:
    """As after warm-up or for fine-tuning, with the earlier optimizer dropped or not."""
    with recording() as recorded:
        model, first = created()
        train((model, first), windows(3))
        earlier = None if drop else first
        del first
        train((model, AdamW(model.parameters(), lr=0.01)), windows(3, 1))
    assert [balances(recorded, optimizer) for optimizer in (0, 1)] == [[1] * 3] * 2
    assert recorded.evaluation().verdict == "balanced"
    del earlier


def copied(original: Trained) -> Trained:
    """Both by ``copy.deepcopy``, in one call so that they stay together."""
    return copy.deepcopy(original)


def unpickled(original: Trained) -> Trained:
    """Both by ``pickle``."""
    return pickle.loads(pickle.dumps(original))  # type: ignore[no-any-return]


def restored(original: Trained) -> Trained:
    """A new optimizer with the state of the original."""
    model, optimizer = created()
    model.load_state_dict(original[0].state_dict())
    optimizer.load_state_dict(original[1].state_dict())
    return model, optimizer


@pytest.mark.parametrize(
    ("duplicate", "first_step"), [(copied, None), (unpickled, None), (restored, 1.0)]
)
def test_a_duplicate_of_an_optimizer_has_its_own_index(
    duplicate: Callable[[Trained], Trained], first_step: float | None
) -> None:
    """A copy runs no ``__init__``, so the hooks observe it from its first step on."""
    with recording() as recorded:
        original = created()
        train(original, windows(2))
        duplicated = duplicate(original)
        train(duplicated, windows(3))
        train(original, windows(1))
    assert steps(recorded) == [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3), (0, 3)]
    assert balances(recorded, 0) == [1, 1, 1]
    assert balances(recorded, 1) == [first_step, 1, 1]
    for optimizer in (0, 1):
        assert accused(judged(recorded.facts(optimizer))) == {}


def test_memory_does_not_grow_with_the_number_of_dropped_optimizers() -> None:
    recorder = Recorder(lambda step: None)
    recorder.install()
    objects = []
    for trial in range(60):
        train(created(), windows(1))
        assert len(list(recorder.windows)) <= 2  # this one, and the last one before it
        if trial % 20 == 19:
            gc.collect()
            objects.append(len(gc.get_objects()))
    recorder.uninstall()
    assert recorder.windows.names == ["SGD"] * 60
    assert recorder.windows.steps == [1] * 60
    assert objects[2] - objects[1] < 40  # of them a name and a number for each of 20 optimizers


class Outer(Optimizer):
    """Steps another optimizer over a share of its own parameters, as ZeRO does."""

    def __init__(self, parameters: list[nn.Parameter], share: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.inner = SGD(share, lr=0.01)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_an_optimizer_that_is_stepped_inside_the_step_of_another_is_a_part_of_it() -> None:
    model = tiny_model()
    parameters = list(model.parameters())
    with recording() as recorded:
        train((model, Outer(parameters, parameters[:1])), windows(4))
    assert steps(recorded) == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert not accused(recorded.evaluation())


def test_a_step_that_raised_leaves_other_optimizers_of_its_parameters_alone() -> None:
    model = tiny_model()
    raising = Outer(list(model.parameters()), list(model.parameters()))
    del raising.inner
    with recording() as recorded:
        with pytest.raises(AttributeError):
            train((model, raising), windows(1))
        train((model, SGD(model.parameters(), lr=0.01)), windows(3))
    assert steps(recorded) == [(1, 1), (1, 2), (1, 3)]  # the step that raised is no step


def test_optimizers_that_are_created_after_the_first_backward_are_evaluated() -> None:
    """One for each parameter, as ``pyro.optim`` does: its first window has no backward."""
    model = tiny_model()
    optimizers: dict[object, Optimizer] = {}
    with recording() as recorded:
        for window in windows(6):
            model(window[0][0]).square().sum().backward()
            for parameter in model.parameters():
                if parameter not in optimizers:
                    optimizers[parameter] = SGD([parameter], lr=0.1)
                optimizers[parameter].step()
            model.zero_grad()
    evaluation = recorded.evaluation()
    assert evaluation.verdict == "balanced", evaluation.coverage
