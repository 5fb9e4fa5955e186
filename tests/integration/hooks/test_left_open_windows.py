"""Backwards that no step follows until the process ends, and loops that only look like it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    SequentialLR,
)

from gradledger.capture.step_sampling import StepSampler
from gradledger.observers.ranks.collectives import Collectives
from gradledger.records import LeftOpen, StepRecord
from helpers.updates import recorded_to_the_end

MANY = 65


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def backward(model: nn.Module, factor: float = 1.0) -> None:
    (model(torch.ones(3, 4)).square().mean() * factor).backward()


def records_of(recording: Any) -> list[StepRecord]:
    return [step.resolve() for step in recording.steps]


def test_many_backwards_without_a_step_are_counted() -> None:
    with recorded_to_the_end() as recording:
        model, optimizer = model_and_optimizer()
        for number in range(MANY):
            optimizer.zero_grad()
            backward(model, float("nan") if number == 3 else 1.0)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    (record,) = records_of(recording)
    assert record.skipped and not record.micro_batches
    assert record.left_open is not None
    assert vars(record.left_open) == vars(
        LeftOpen(MANY, MANY - 1, nonfinite=1, norms=MANY, nonfinite_norms=1)
    )


def test_few_backwards_are_the_rest_of_an_epoch() -> None:
    with recorded_to_the_end() as recording:
        model, optimizer = model_and_optimizer()
        for _ in range(MANY - 1):
            backward(model)
    assert optimizer is not None and not recording.steps


def test_steps_that_stop_are_reported_far_above_the_usual_window() -> None:
    for accumulated, is_reported in ((1, True), (16, False)):
        with recorded_to_the_end() as recording:
            model, optimizer = model_and_optimizer()
            for _ in range(3):
                for _ in range(accumulated):
                    backward(model)
                optimizer.step()
                optimizer.zero_grad()
            for _ in range(MANY):
                backward(model)
        last = records_of(recording)[-1]
        assert (last.left_open is not None) is is_reported
        assert last.step == 3 + is_reported
        if last.left_open is not None:
            assert vars(last.left_open) == vars(LeftOpen(MANY, trained=3 * accumulated))


@pytest.mark.parametrize(("left_out", "is_reported"), [(17, True), (16, False)])
def test_a_loop_that_goes_on_without_its_step_is_reported_sooner(
    left_out: int, is_reported: bool
) -> None:
    with recorded_to_the_end() as recording:
        model, optimizer = model_and_optimizer()
        for number in range(20 + left_out):
            optimizer.zero_grad()
            backward(model)
            if number < 20:
                optimizer.step()
    last = records_of(recording)[-1]
    assert (last.left_open is not None) is is_reported
    if last.left_open is not None:
        expected = LeftOpen(left_out, left_out - 1, trained=20, again=True)
        assert vars(last.left_open) == vars(expected)


@pytest.mark.parametrize("updates", [False, True])
def test_a_function_that_trains_drops_its_optimizer_where_it_returns(updates: bool) -> None:
    """Unless something else updates the parameters, what it left open is reported at the end."""

    def train() -> None:
        model, optimizer = model_and_optimizer()
        for number in range(2 + MANY):
            optimizer.zero_grad()
            backward(model)
            if number < 2:
                optimizer.step()
            elif updates:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(0.9)

    with recorded_to_the_end() as recording:
        train()
    left = [record.left_open for record in records_of(recording) if record.left_open is not None]
    assert [each.backwards for each in left] == ([] if updates else [MANY])


def test_a_helper_that_measures_gradients_after_the_training_is_another_line() -> None:
    with recorded_to_the_end() as recording:
        model, optimizer = model_and_optimizer()
        for _ in range(20):
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
        for _ in range(MANY - 1):
            optimizer.zero_grad()
            backward(model)
    assert records_of(recording)[-1].left_open is None


def test_backwards_after_the_training_that_give_gradients_to_inputs_are_counted() -> None:
    with recorded_to_the_end() as recording:
        model, optimizer = model_and_optimizer()
        for _ in range(20):  # enough that no further backward is searched at first
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
        for _ in range(2 * MANY):
            image = torch.ones(3, 4, requires_grad=True)
            model(image).square().mean().backward()
    left_open = records_of(recording)[-1].left_open
    assert left_open is not None and left_open.inputs > 0


def test_parameters_that_the_loop_updates_itself_need_no_step() -> None:
    with recorded_to_the_end() as recording:
        model, optimizer = model_and_optimizer()
        for _ in range(MANY):
            optimizer.zero_grad()
            backward(model)
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data -= 0.1 * parameter.grad
    assert all(record.left_open is None for record in records_of(recording))


def test_an_optimizer_may_wait_for_another_one() -> None:
    with recorded_to_the_end() as recording:
        critic, waiting = model_and_optimizer()
        generator, optimizer = model_and_optimizer()
        for _ in range(MANY):
            (generator(torch.ones(3, 4)).sum() + critic(torch.ones(3, 4)).sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert waiting is not None
    *_, last = records_of(recording)
    assert last.left_open is not None and last.left_open.idle
    assert not last.left_open.zeroed  # information only


# ---------------------------------------------------------------------- schedules

K, EPOCHS, BATCHES = 4, 4, 10
STEPS, ALL = EPOCHS * 3, EPOCHS * BATCHES


def trained(schedule: Callable[[torch.optim.Optimizer], Any], per_epoch: bool = False) -> LeftOpen:
    """What a training leaves unfinished that steps every K micro-batches, and at each epoch's end.

    Without an unfinished plan there is no record of it.
    """
    with recorded_to_the_end() as recording:
        model, optimizer = model_and_optimizer()
        scheduler = schedule(optimizer)
        for _ in range(EPOCHS):
            for i in range(1, BATCHES + 1):
                backward(model)
                if i % K == 0 or i == BATCHES:
                    optimizer.step()
                    optimizer.zero_grad()
                    if not per_epoch:
                        scheduler.step()
            if per_epoch:
                scheduler.step()
    *steps, last = records_of(recording)
    assert all(record.left_open is None for record in steps)
    assert len(recording.steps) == STEPS + (last.left_open is not None)
    return last.left_open or LeftOpen()


def decay(step: int, steps: int) -> float:
    return max(0.0, 1 - step / steps)


def in_a_variable(steps: int) -> Callable[[torch.optim.Optimizer], Any]:
    return lambda optimizer: LambdaLR(optimizer, lambda step: decay(step, steps))


def after_a_warm_up(steps: int) -> Callable[[torch.optim.Optimizer], Any]:
    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        parts = [LinearLR(optimizer, 0.5, 1.0, 2), CosineAnnealingLR(optimizer, steps - 2)]
        return SequentialLR(optimizer, parts, [2])

    return schedule


SCHEDULES: dict[str, Callable[[int], Callable[[torch.optim.Optimizer], Any]]] = {
    "cosine": lambda steps: lambda optimizer: CosineAnnealingLR(optimizer, steps),
    "one cycle": lambda steps: lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=steps),
    "a partial function": lambda steps: (
        lambda optimizer: LambdaLR(optimizer, functools.partial(decay, steps=steps))
    ),
    "a variable": in_a_variable,
    "after a warm-up": after_a_warm_up,
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # by the SequentialLR of PyTorch 2.8
@pytest.mark.parametrize("plan", SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule_that_is_planned_in_micro_batches_is_reported(
    plan: Callable[[int], Callable[[torch.optim.Optimizer], Any]],
) -> None:
    left = trained(plan(ALL))
    assert (left.planned, left.scheduled, left.trained) == (ALL, STEPS, ALL)
    assert not trained(plan(STEPS + 1)).planned


def test_a_schedule_that_is_planned_in_steps_and_stepped_by_epoch_is_reported() -> None:
    for planned in (STEPS, ALL):
        left = trained(functools.partial(CosineAnnealingLR, T_max=planned), per_epoch=True)
        assert (left.planned, left.scheduled) == (planned, EPOCHS)
    no_number_of_it = trained(lambda o: CosineAnnealingLR(o, STEPS + 2), per_epoch=True)
    assert not no_number_of_it.planned
    assert not trained(lambda o: CosineAnnealingLR(o, EPOCHS), per_epoch=True).planned


def test_a_schedule_that_counts_in_micro_batches_itself_is_right() -> None:
    """Its function holds the number of all micro-batches, and comes to its end."""
    steps, factor = ALL, ALL / STEPS
    scaled = trained(lambda o: LambdaLR(o, lambda step: decay(round(step * factor), steps)))
    assert not scaled.planned


def test_a_number_of_another_name_is_no_plan() -> None:
    """A decay by epoch holds the micro-batches of one, which may be all that run."""

    def by_epoch(batches_per_epoch: int) -> Callable[[torch.optim.Optimizer], Any]:
        return lambda o: LambdaLR(o, lambda step: 0.5 ** (step // batches_per_epoch))

    assert not trained(by_epoch(ALL)).planned


def test_a_training_that_an_exception_ends_leaves_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", KeyboardInterrupt(), raising=False)
    assert not trained(lambda optimizer: CosineAnnealingLR(optimizer, ALL)).planned


def test_a_worker_that_ends_inside_its_exception_leaves_no_plan() -> None:
    """``multiprocessing`` reports the exception of a worker itself, and then ends the process."""
    try:
        raise RuntimeError
    except RuntimeError:
        assert not trained(lambda optimizer: CosineAnnealingLR(optimizer, ALL)).planned


@pytest.mark.parametrize("changes", [True, False])
def test_models_that_change_after_the_last_step_of_ranks_apart_are_sent(
    changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local SGD of fewer steps than its period averages them there."""
    monkeypatch.setattr("gradledger.observers.ranks.local_gradients.world_size", lambda: 2)
    monkeypatch.setattr(Collectives, "_sync", lambda *_: "none")
    with recorded_to_the_end() as recording:
        model, optimizer = model_and_optimizer()
        for _ in range(2):
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
        left = [parameter.detach().clone() for parameter in model.parameters()]
        if changes:
            for parameter in model.parameters():
                parameter.data.mul_(0.5)
    records = records_of(recording)
    assert [record.step for record in records] == [1, 2, 3][: 2 + changes]
    if changes:
        assert records[-1].left_open is not None and records[-1].skipped
        samples = records[-1].models
        assert samples is not None
        assert samples.at_step == pytest.approx([0.5 * v for v in samples.after_backward])
        assert set(samples.after_backward) <= {float(v) for each in left for v in each.flatten()}


@pytest.mark.parametrize("collectives", [0, 1])
def test_models_after_steps_that_are_not_sampled_are_sent_if_a_collective_ran(
    collectives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter([*([7] * 16), 7 + collectives])
    monkeypatch.setattr("gradledger.observers.ranks.local_gradients.world_size", lambda: 2)
    monkeypatch.setattr("gradledger.observers.parameter_updates.sequence_number", numbers.__next__)
    monkeypatch.setattr(Collectives, "_sync", lambda *_: "none")
    with recorded_to_the_end(StepSampler(1e-12, first_steps=16)) as recording:
        model, optimizer = model_and_optimizer()
        for _ in range(40):
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
    *sampled, last = records_of(recording)
    assert sampled[14].step == 15
    if collectives:
        assert (last.step, last.left_open is not None) == (41, True)
        assert last.models is not None and last.models.at_step != last.models.after_backward
    else:
        assert (last.step, last.models) == (16, None)


def rising(warmup_steps: int, total_steps: int, made: int = 20) -> LeftOpen | None:
    """What a training of ``made`` steps leaves, with a schedule of two numbers of steps."""

    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / warmup_steps
        return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))

    with recorded_to_the_end() as recording:
        model, optimizer = model_and_optimizer()
        scheduler = LambdaLR(optimizer, factor)
        for _ in range(made):
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    return records_of(recording)[-1].left_open


def test_a_warm_up_that_is_longer_than_the_plan_is_reported_at_its_end() -> None:
    left = rising(500, 20)
    assert left is not None
    assert (left.planned, left.scheduled, left.warmup) == (20, 20, 500)


def test_a_short_warm_up_and_a_training_that_is_stopped_are_not() -> None:
    assert rising(5, 20) is None
    assert rising(500, 20, made=12) is None
    assert rising(500, 1000) is None


def test_a_number_that_is_not_of_steps_is_no_plan() -> None:
    with recorded_to_the_end() as recording:
        model, optimizer = model_and_optimizer()
        d_model, warmup = 20, 4000
        scheduler = LambdaLR(optimizer, lambda step: d_model**-0.5 * (step + 1) * warmup**-1.5)
        for _ in range(20):
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    assert records_of(recording)[-1].left_open is None


def two_layers() -> tuple[nn.Sequential, torch.optim.Optimizer, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    first = torch.optim.Adagrad(model[0].parameters(), lr=0.1)
    return model, first, torch.optim.SGD(model[1].parameters(), lr=0.1)


def test_an_optimizer_that_never_steps_beside_one_that_does_is_reported() -> None:
    with recorded_to_the_end() as recording:
        model, first, second = two_layers()
        for _ in range(20):
            model.zero_grad()
            backward(model)
            second.step()
    assert first is not None
    *steps, last = records_of(recording)
    assert len(steps) == 20 and (last.optimizer, last.step) == (0, 21)
    assert last.left_open is not None
    assert (last.left_open.idle, last.left_open.backwards) == ("Adagrad", 20)
    assert last.left_open.names == [
        "weight",
        "bias",
    ]  # of the layer that the optimizer was created with
    assert not last.left_open.stopped


WAITS = "begins later", "by hand", "shared", "few", "through data", "later through data", "dropped"


@pytest.mark.parametrize("how", [*WAITS, "replaced", "trained before"])
def test_optimizers_that_wait_are_not_reported_if_something_trains_for_them(how: str) -> None:
    with recorded_to_the_end() as recording:
        model, first, second = two_layers()
        waiting = list[torch.optim.Optimizer]()  # the first of two that the script keeps
        if how == "shared":
            second = torch.optim.SGD(model.parameters(), lr=0.1)
        if how == "trained before":  # by an optimizer that the script drops
            before = torch.optim.SGD(model.parameters(), lr=0.1)
            backward(model)
            before.step()
            del before
            first = torch.optim.Adagrad(model[0].parameters(), lr=0.1)
        for number in range(16 if how == "few" else 40):
            if how == "replaced" and number == 20:
                waiting.append(first)
                first = torch.optim.Adagrad(model[0].parameters(), lr=0.1)
            model.zero_grad()
            backward(model)
            second.step()
            if (how == "begins later" and number >= 35) or (how == "replaced" and number >= 20):
                first.step()
            for parameter in model[0].parameters():
                assert parameter.grad is not None
                if how == "by hand":
                    with torch.no_grad():
                        parameter.sub_(parameter.grad, alpha=0.1)
                elif how == "through data" or (how == "later through data" and number >= 30):
                    parameter.data.sub_(parameter.grad, alpha=0.1)
        if how == "dropped":  # or it was replaced, and the new one has not stepped yet
            del first
    assert all(record.left_open is None for record in records_of(recording))
