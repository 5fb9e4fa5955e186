"""fastai's optimizer, which is no ``torch.optim.Optimizer``, and its object for a GradScaler."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from helpers.training import Recording, accused, cross_entropy, recording, tiny_model, windows

K, STEPS = 4, 6
EQUAL = [((6, 6),) * K]


class FastaiOptimizer:
    """As in fastai 2.8: parameters in lists, and the groups made of them."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        self.param_lists, self.hypers = [parameters], [{"lr": lr}]
        self.state: dict[Any, Any] = defaultdict(dict)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [{"params": p, **h} for p, h in zip(self.param_lists, self.hypers, strict=True)]

    def step(self, closure: None = None) -> None:
        with torch.no_grad():
            for parameter in self.param_lists[0]:
                parameter.sub_(parameter.grad, alpha=self.hypers[0]["lr"])  # type: ignore[arg-type]

    def zero_grad(self) -> None:
        for parameter in self.param_lists[0]:
            if parameter.grad is not None:
                parameter.grad.zero_()


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module: Any = ModuleType("fastai.optimizer")
    module.Optimizer = FastaiOptimizer
    monkeypatch.setitem(sys.modules, "fastai.optimizer", module)
    before = dict(vars(FastaiOptimizer))
    yield
    assert dict(vars(FastaiOptimizer)) == before  # the hooks restored it


def last_balance(recorded: Recording) -> float:
    ledger = recorded.facts()[-1].ledger
    assert ledger is not None
    return ledger.balance


def train(divisor: int) -> Recording:
    net = tiny_model()
    with recording() as recorded:
        optimizer = FastaiOptimizer(list(net.parameters()), 0.01)
        for window in windows(STEPS, lengths=EQUAL):
            for batch in window:
                (cross_entropy(net, batch) / divisor).backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorded


@pytest.mark.parametrize(
    ("divisor", "rules"),
    [(K, {}), (1, {"reduction.missing_division"}), (K * K, {"reduction.double_division"})],
)
def test_the_division_by_k_is_judged(divisor: int, rules: set[str]) -> None:
    recorded = train(divisor)
    assert len(recorded.records()) == STEPS
    assert not any(record.by_hand for record in recorded.records())
    assert last_balance(recorded) == pytest.approx(K / divisor)
    assert set(accused(recorded.evaluation())) == set(rules)


class MixedPrecision:
    """It stands for the optimizer, so that the loop sees whether the scaler skips."""

    skips = True

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def step(self) -> None:
        self.skips = False


@pytest.mark.parametrize("of_pytorch", [False, True])
def test_a_scaler_step_on_an_object_that_stands_for_the_optimizer(of_pytorch: bool) -> None:
    net, overflows = tiny_model(), 3
    with recording() as recorded:
        make: Any = torch.optim.SGD if of_pytorch else FastaiOptimizer
        optimizer = make(list(net.parameters()), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for number, window in enumerate(windows(STEPS, lengths=EQUAL)):
            for batch in window:
                loss = cross_entropy(net, batch) / K
                scaler.scale(loss * float("inf") if number == overflows else loss).backward()
            stands_for: Any = MixedPrecision(optimizer)
            scaler.step(stands_for)
            if not stands_for.skips:
                optimizer.step()
            scaler.update()
            optimizer.zero_grad()
    skipped = [record.step for record in recorded.records() if record.skipped]
    assert skipped == [recorded.records()[overflows].step]
    assert len(recorded.records()) == STEPS
    assert last_balance(recorded) == pytest.approx(1.0)
    assert not accused(recorded.evaluation())
