"""A hook that fails harms neither the script nor the truth: the fact is missing, with a reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradledger.capture.open_records import OpenStep
from gradledger.capture.recorder import Recorder
from gradledger.capture.windows import OpenWindows, OptimizerWindow
from gradledger.observers.base import Observer
from gradledger.observers.clipping import Clipping
from gradledger.observers.lr_scheduler import LearningRates
from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model.chart_metrics import chart_metrics
from gradledger_monitor.model.step_facts import StepFacts
from helpers.training import (
    Recording,
    accused,
    cross_entropy,
    facts_of,
    tiny_model,
    tokens,
    windows,
)

pytestmark = pytest.mark.swallows

METHODS = ("install", "backward_begins", "backward_ends", "step_begins", "step_ends", "uninstall")


def train(recorder: Recorder | None) -> list[Tensor]:
    """A healthy loop that gives every observer something to see; clipping engages hard."""
    model = tiny_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    if recorder is not None:
        recorder.install()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for window in windows(4):
        count = sum(map(tokens, window))
        for batch in window:
            loss = cross_entropy(model, batch, reduction="sum") / count
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
    if recorder is not None:
        recorder.uninstall()
    return list(model.parameters())


class Broken(Exception):
    """What the injected fault raises."""


def raising(method: Callable[..., Any], at: int) -> Callable[..., Any]:
    """The method, which raises at its n-th call."""
    calls = 0

    def faulty(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise Broken("on purpose")
        return method(*args, **kwargs)

    return faulty


def observers() -> list[type[Observer]]:
    return [type(observer) for observer in Recorder(lambda step: None)._observers]


def failure_cases() -> list[Any]:
    """Every method that an observer has, at its first call and at one in mid-window."""
    cases = []
    for kind in observers():
        for method in METHODS:
            if getattr(kind, method) is not getattr(Observer, method) or method == "install":
                once = method in ("install", "uninstall")
                cases += [(kind, method, at) for at in ((1,) if once else (1, 3))]
    return [pytest.param(*case, id=f"{case[0].__name__}.{case[1]}#{case[2]}") for case in cases]


# Worked out from what several observers saw, or different every time.
DERIVED = ("norm", "nonfinite", "events", "coefficient", "missing", "time", "backward_ms")


def changed(ours: Any, theirs: Any, name: str = "record") -> set[str]:
    """Names of the fields in which two records differ."""
    if ours == theirs or name in DERIVED:
        return set()
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {each for key in ours for each in changed(ours[key], theirs[key], key)}
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = zip(ours, theirs, strict=True)
        return {each for one, other in pairs for each in changed(one, other, name)}
    return {name}


def _plain(value: Any) -> Any:
    """As data, without the lines of the script: they are those of the calls that are observed."""
    if hasattr(value, "__struct_fields__"):
        fields = set(value.__struct_fields__) - {"code"}
        return {name: _plain(getattr(value, name)) for name in sorted(fields)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def located(records: Sequence[StepRecord]) -> set[str]:
    """The statements that records point at, whatever the role: a scaled backward is a backward."""
    found = [_plain(location) for record in records for location in record.code]
    return {repr({**location, "role": ""}) for location in found}


def assert_true_or_absent(harmed: StepFacts, unharmed: StepFacts) -> None:
    """A figure may go missing; it may not become another number."""
    figures, truth = chart_metrics(harmed), chart_metrics(unharmed)
    for name, value in figures.items():
        assert value is None or value == pytest.approx(truth[name], rel=1e-6), name


@pytest.fixture(scope="module")
def alone() -> list[Tensor]:
    """What the training ends in without hooks."""
    return train(None)


@pytest.fixture(scope="module")
def unharmed() -> list[StepRecord]:
    """What a training without faults records."""
    recorded = Recording()
    train(Recorder(recorded.steps.append))
    return recorded.records()


@pytest.mark.parametrize(("kind", "method", "at"), failure_cases())
def test_an_observer_that_fails_takes_only_its_own_facts_away(
    kind: type[Observer],
    method: str,
    at: int,
    alone: list[Tensor],
    unharmed: list[StepRecord],
    swallowed: list[tuple[str, BaseException]],
) -> None:
    recorded = Recording()
    recorder = Recorder(recorded.steps.append)
    (observer,) = (o for o in recorder._observers if type(o) is kind)
    setattr(observer, method, raising(getattr(observer, method), at))
    assert_same(train(recorder), alone)
    assert [type(error) for _, error in swallowed] == [Broken]
    assert changed(_plain(recorded.records()), _plain(unharmed)) <= set(kind.facts)
    assert located(recorded.records()) <= located(unharmed)
    if method != "uninstall":
        assert_given_up(kind, recorded)
    assert_nothing_untrue(recorded, unharmed)


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize(
    ("kind", "part"), [(Clipping, "_add_event"), (LearningRates, "_add_event")]
)
def test_an_observer_that_fails_inside_a_wrapper_is_switched_off_too(
    kind: type[Observer], part: str, at: int, alone: list[Tensor], unharmed: list[StepRecord]
) -> None:
    recorded = Recording()
    recorder = Recorder(recorded.steps.append)
    (observer,) = (o for o in recorder._observers if type(o) is kind)
    setattr(observer, part, raising(getattr(observer, part), at))
    assert_same(train(recorder), alone)
    assert_given_up(kind, recorded)
    assert_nothing_untrue(recorded, unharmed)


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize(
    ("owner", "part"),
    [
        (OpenWindows, "add_event"),
        (OpenWindows, "index_of"),
        (OptimizerWindow, "begin_backward"),
        (OptimizerWindow, "end_backward"),
        (OptimizerWindow, "add_micro_batch"),
        (OptimizerWindow, "add_event"),
        (OptimizerWindow, "close"),
        (OpenStep, "deferred"),
    ],
)
def test_a_fault_of_the_recorder_itself_harms_neither_script_nor_truth(
    owner: type,
    part: str,
    at: int,
    alone: list[Tensor],
    unharmed: list[StepRecord],
    monkeypatch: pytest.MonkeyPatch,
    swallowed: list[tuple[str, BaseException]],
) -> None:
    """No later record would be reliable: the recorder stops."""
    monkeypatch.setattr(owner, part, raising(getattr(owner, part), at))
    recorded = Recording()
    recorder = Recorder(recorded.steps.append)
    assert_same(train(recorder), alone)
    assert [type(error) for _, error in swallowed] == [Broken]
    assert [step.step for step in recorded.steps] == list(range(1, len(recorded.steps) + 1))
    assert len(recorded.steps) < len(unharmed) or part == "add_event"
    assert_nothing_untrue(recorded, unharmed)


def assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def assert_given_up(kind: type[Observer], recorded: Recording) -> None:
    """The facts of an observer that failed are missing from the last record, and why."""
    for fact in kind.facts:
        assert (
            recorded.records()[-1].missing[fact] == f"the observer {kind.__name__} failed: Broken"
        )


def assert_nothing_untrue(recorded: Recording, unharmed: list[StepRecord]) -> None:
    """Figures are right or absent, and nobody is accused."""
    truth = {
        record.step: facts for record, facts in zip(unharmed, facts_of([unharmed]), strict=True)
    }
    for facts in recorded.facts():
        assert_true_or_absent(facts, truth[facts.step])
    assert recorded.steps == [] or accused(recorded.evaluation()) == {}
