"""Optimizers of fastai and Keras, which are no ``torch.optim.Optimizer``."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from gradledger.capture.open_records import OpenStep
from gradledger.capture.recorder import Recorder
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


class Variable:
    """As in Keras, whose layers hold them."""

    def __init__(self, value: Any) -> None:
        self.value = value


class BaseOptimizer:
    """As in Keras 3.15: gradients are arguments, and every K-th call updates the parameters."""

    def __init__(self, rate: float, steps: int | None = None, limit: float | None = None) -> None:
        self._learning_rate, self._limit = Variable(torch.tensor(rate)), limit
        self.gradient_accumulation_steps, self._calls = steps, 0

    def build(self, variables: list[Variable]) -> None:
        self._variables = list(variables)
        self._accumulated = [torch.zeros_like(v.value) for v in variables]

    def apply(self, grads: list[Any], trainable_variables: list[Variable]) -> None:
        if not hasattr(self, "_variables"):
            self.build(trainable_variables)
        with torch.no_grad():
            self._backend_apply_gradients(list(grads), list(trainable_variables))
        self._calls += 1

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        steps, total = self.gradient_accumulation_steps, self._accumulated
        if steps:
            torch._foreach_add_(total, grads)
            if (self._calls + 1) % steps:
                return
            grads = [each / steps for each in total]
            torch._foreach_zero_(total)
        for variable, gradient in zip(
            trainable_variables, self._clip_gradients(grads), strict=True
        ):
            variable.value.sub_(gradient * self._learning_rate.value)

    def _clip_gradients(self, grads: Any) -> Any:
        return [g.clamp(-self._limit, self._limit) for g in grads] if self._limit else grads


class KerasSGD(BaseOptimizer):
    """A subclass, which builds its averages."""

    def build(self, variables: list[Variable]) -> None:
        super().build(variables)
        self.momentums = [torch.zeros_like(v.value) for v in variables]


LIBRARIES = {
    "fastai.optimizer": ("Optimizer", FastaiOptimizer),
    "keras.src.optimizers.base_optimizer": ("BaseOptimizer", BaseOptimizer),
}


@pytest.fixture(autouse=True)
def _libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, (attribute, kind) in LIBRARIES.items():
        module: Any = ModuleType(name)
        setattr(module, attribute, kind)
        monkeypatch.setitem(sys.modules, name, module)
    before = [dict(vars(kind)) for _, kind in LIBRARIES.values()]
    yield
    after = [dict(vars(kind)) for _, kind in LIBRARIES.values()]
    assert after == before  # the hooks restored them


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


def test_optimizers_have_the_names_of_the_functions_and_classes_that_users_know() -> None:
    functions = dict[str, Any](vars(sys.modules["fastai.optimizer"]))
    exec("def Adam(params, lr): return Optimizer(params, lr)", functions)
    net, recorder = tiny_model(), Recorder(list[OpenStep]().append)
    parameters, keras = list(net.parameters()), KerasSGD(0.01)
    recorder.install()
    try:
        optimizers = [functions["Adam"](parameters, 0.01), FastaiOptimizer(parameters, 0.01)]
        keras.build([Variable(p) for p in parameters])
        assert [w.name for w in recorder.windows] == ["Adam", "FastaiOptimizer", "KerasSGD"]
    finally:
        recorder.uninstall()
    assert all(optimizer.param_groups for optimizer in optimizers)


def train_with_keras(
    steps: int | None = K, divisor: int = 1, limit: float | None = None, by_loop: str = ""
) -> Recording:
    """``by_loop``: the loop passes the sum of K gradients (``sum``), or the last (``last``)."""
    net = tiny_model()
    variables = list(map(Variable, net.parameters()))
    with recording() as recorded:
        optimizer = KerasSGD(0.01, steps, limit)
        if divisor == 1:  # as a model does before it trains; else the first call of apply does
            optimizer.build(variables)
        for window in windows(STEPS, lengths=EQUAL):
            if by_loop == "sum":
                net.zero_grad()
            for batch in window:
                if by_loop != "sum":
                    net.zero_grad()
                (cross_entropy(net, batch) / divisor).backward()
                if not by_loop:
                    optimizer.apply([v.value.grad for v in variables], variables)
            if by_loop:
                optimizer.apply([v.value.grad for v in variables], variables)
    return recorded


@pytest.mark.parametrize(
    ("arguments", "balance", "rules"),
    [
        ({}, 1.0, set()),
        ({"limit": 1e-3}, 1.0, set()),  # clipped after that
        ({"divisor": K}, 1 / K, {"reduction.double_division"}),
        ({"steps": None, "by_loop": "sum", "divisor": K}, 1.0, set()),
        ({"steps": None, "by_loop": "sum"}, K, {"reduction.missing_division"}),
        ({"steps": None, "by_loop": "last"}, 1.0, {"loop.zeroed_every_microbatch"}),
    ],
)
def test_what_keras_applies_is_judged(
    arguments: dict[str, Any], balance: float, rules: set[str]
) -> None:
    recorded = train_with_keras(**arguments)
    late = arguments.get("divisor", 1) != 1
    assert [record.step for record in recorded.records()] == list(range(1 + late, STEPS + 1))
    assert recorded.records()[-1].lr == pytest.approx(0.01)
    assert last_balance(recorded) == pytest.approx(balance)
    assert set(accused(recorded.evaluation())) == rules


def test_gradients_that_keras_accumulates_in_another_way_are_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def maximum(total: Any, grads: Any) -> None:
        for each, gradient in zip(total, grads, strict=True):
            torch.maximum(each, gradient, out=each)

    monkeypatch.setattr(torch, "_foreach_add_", maximum)
    recorded = train_with_keras()
    evaluation = recorded.evaluation()
    assert not accused(evaluation) and evaluation.verdict == "incomplete"
    assert "no multiple of those" in evaluation.coverage["reduction.missing_division"]


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
