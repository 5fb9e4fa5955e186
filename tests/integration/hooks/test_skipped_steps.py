"""Steps too short to sample all of them: the records of the sampled ones are as if all were."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradledger.capture.recorder import Recorder
from gradledger.capture.step_sampling import StepSampler
from gradledger_monitor.ingest import schema
from helpers.training import (
    CLASSES,
    HIDDEN,
    INPUTS,
    Recording,
    cross_entropy,
    recording,
    tiny_model,
    windows,
)

from .test_hooks_change_nothing import plain, scaled

STEPS = 40
# The first four, and then four of every sixteen, however little they cost: 1-4, 17-20, 33-36.
SAMPLED = [1, 2, 3, 4, 17, 18, 19, 20, 33, 34, 35, 36]

Watched = AbstractContextManager[object]
Loop = Callable[[Watched], Any]


def rare_sampler() -> StepSampler:
    """A sampler whose share is never enough for every step."""
    return StepSampler(1e-12, first_steps=4, burst=4, longest_period=16)


def loading(watched: Watched) -> None:
    """Epochs of six batches, of which the last is short, over a shuffling loader."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
    data = TensorDataset(torch.randn(23, INPUTS), torch.randint(0, CLASSES, (23,)))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    with watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(7):
            for inputs, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()


# Clipping and a schedule; a GradScaler that skips its first steps, and some as its scale grows.
LOOPS: list[Loop] = [partial(plain, steps=STEPS), partial(scaled, steps=STEPS), loading]
by_loop = pytest.mark.parametrize("loop", LOOPS, ids=["plain", "scaled", "loading"])


def records_of_all_and_of_sampled(loop: Loop) -> tuple[list[Any], list[Any]]:
    """The records of the same training."""
    whole, part = Recording(), Recording()
    loop(recording(whole))
    loop(recording(part, rare_sampler()))
    return whole.records(), part.records()


@by_loop
def test_a_few_steps_in_a_row_are_sampled_and_the_others_are_skipped(loop: Loop) -> None:
    _, part = records_of_all_and_of_sampled(loop)
    assert [r.step for r in part if r.step <= STEPS] == SAMPLED
    announced = {r.step: r.next for r in part if r.next is not None}
    assert announced[4] == 17
    assert announced[20] == 33


@by_loop
def test_records_of_sampled_steps_are_as_if_all_were_sampled(loop: Loop) -> None:
    whole, part = records_of_all_and_of_sampled(loop)
    by_step = {record.step: record for record in whole}
    for record in part:
        assert comparable(record) == comparable(by_step[record.step])


def comparable(record: schema.StepRecord) -> dict[str, Any]:
    """A record without what differs between any two runs of one script.

    Layers are measured at the first sampled step at which they are due; what a loss is given is
    looked at in the first micro-batches that are watched.
    """
    values = wire_fields(record)
    del values["time"], values["next"], values["layers"]
    values["micro_batches"] = [wire_fields(m) for m in record.micro_batches]
    for micro_batch in values["micro_batches"]:
        del micro_batch["backward_ms"], micro_batch["number"]
        for term in micro_batch["terms"]:
            term.input = None
    return values


def wire_fields(struct: Any) -> dict[str, Any]:
    """The fields of a record."""
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


@pytest.mark.parametrize("train", [plain, scaled])
def test_training_ends_in_the_same_bits(train: Callable[[Watched], list[torch.Tensor]]) -> None:
    wholly, in_part = train(recording()), train(recording(None, rare_sampler()))
    for one, other in zip(wholly, in_part, strict=True):
        assert torch.equal(one, other)


def test_steps_that_the_scaler_skips_are_counted_though_none_is_sampled() -> None:
    """The scaler skips every step: no optimizer hook ever runs, and sampling continues."""
    model = tiny_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    recorded = Recording()
    recorder = Recorder(recorded.steps.append, rare_sampler())
    recorder.install()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for window in windows(20):
        loss = cross_entropy(model, window[0]) * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    recorder.uninstall()
    assert [r.step for r in recorded.records()] == SAMPLED[:8]
    assert all(r.skipped for r in recorded.records())
    assert recorder.last_step_time > 0  # or a heartbeat would report that no step ever ended


def test_a_mistake_that_begins_among_skipped_steps_is_found_at_the_next_sampled_one() -> None:
    model, recorded = tiny_model(), Recording()
    with recording(recorded, rare_sampler()):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step, window in enumerate(windows(STEPS), start=1):
            for batch in window:
                (cross_entropy(model, batch, reduction="sum") / 20).backward()
            optimizer.step()
            if step < 10:
                optimizer.zero_grad()
    rules = {f.rule: f.first_step for f in recorded.evaluation().findings if f.inhibited_by is None}
    assert rules["loop.grads_not_zeroed"] == 18  # of the step before 17, nothing is known


def sharing(watched: Watched) -> None:
    """Two optimizers with one backward, as Muon has AdamW beside it."""
    model = tiny_model()
    first, *others = model.parameters()
    with watched:
        optimizers = [torch.optim.SGD([first], lr=0.1), torch.optim.AdamW(others, lr=0.1)]
        for window in windows(STEPS):
            for batch in window:
                (cross_entropy(model, batch) / len(window)).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


def sharing_a_scaler(watched: Watched) -> None:
    """The same under a GradScaler, which skips steps as its scale grows."""
    model = tiny_model()
    first, *others = model.parameters()
    with watched:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)
        optimizers = [torch.optim.SGD([first], lr=0.1), torch.optim.AdamW(others, lr=0.1)]
        for window in windows(STEPS):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = cross_entropy(model, window[0])
            scaler.scale(loss).backward()
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            for optimizer in optimizers:
                optimizer.zero_grad()


def alternating(watched: Watched) -> None:
    """Two models, each with its own backward."""
    models = tiny_model(0), tiny_model(1)
    with watched:
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for window in windows(STEPS):
            for model, optimizer in zip(models, optimizers, strict=True):
                cross_entropy(model, window[0]).backward()
                optimizer.step()
                optimizer.zero_grad()


def adversarial(watched: Watched, often: int = 1) -> None:
    """The generator's loss leaves gradients in the discriminator, which steps first, and more."""
    torch.manual_seed(0)
    generator, discriminator = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, 1)
    with watched:
        one = torch.optim.Adam(discriminator.parameters(), lr=0.01)
        other = torch.optim.Adam(generator.parameters(), lr=0.01)
        for _ in range(STEPS):
            for _ in range(often):
                real, fake = torch.randn(8, INPUTS), generator(torch.randn(8, INPUTS))
                one.zero_grad()
                (discriminator(fake.detach()) - discriminator(real)).mean().backward()
                one.step()
            other.zero_grad()
            (-discriminator(fake)).mean().backward()
            other.step()


def delayed(watched: Watched) -> None:
    """An actor that steps after every third step of its critic."""
    critic, actor = tiny_model(0), tiny_model(1)
    with watched:
        often, seldom = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (critic, actor)]
        for number, window in enumerate(windows(3 * STEPS), start=1):
            cross_entropy(critic, window[0]).backward()
            often.step()
            often.zero_grad()
            if number % 3 == 0:
                cross_entropy(actor, window[0]).backward()
                seldom.step()
                seldom.zero_grad()


SEVERAL = [
    sharing,
    sharing_a_scaler,
    alternating,
    adversarial,
    delayed,
    partial(adversarial, often=2),
]


@pytest.mark.parametrize("loop", SEVERAL)
def test_steps_of_several_optimizers_are_skipped_between_rounds(loop: Loop) -> None:
    whole, part = Recording(), Recording()
    loop(recording(whole))
    loop(recording(part, rare_sampler()))
    for index in (0, 1):
        by_step = {record.step: record for record in whole.records(index)}
        recorded = part.records(index)
        assert len(by_step) >= STEPS
        assert 8 < len(recorded) < len(by_step) / 2
        for record, following in pairwise(recorded):
            assert following.step == (record.next or record.step + 1)  # and none is missed
        for record in recorded:
            own = by_step[record.step]
            # the other's step at the end of a round that passed is no part of this one
            own.events = [event for event in own.events if event.own or event.after]
            record.events = [event for event in record.events if event.own or event.after]
            assert comparable(record) == comparable(own)
    wholly, in_part = rules_named(whole), rules_named(part)
    assert in_part <= wholly  # too few of the steps that the scaler skips are sampled


def rules_named(recorded: Recording) -> set[str]:
    """The rules whose findings the records give."""
    return {f.rule for f in recorded.evaluation().findings if f.inhibited_by is None}


def alternating_unless(misses: Callable[[int, int], bool], steps: int) -> Recording:
    """Two models that alternate, except for the steps that ``misses(optimizer, number)`` names."""
    models, recorded = (tiny_model(0), tiny_model(1)), Recording()
    with recording(recorded, rare_sampler()):
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for number, window in enumerate(windows(steps), start=1):
            for index, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                if not misses(index, number):
                    cross_entropy(model, window[0]).backward()
                    optimizer.step()
                    optimizer.zero_grad()
    return recorded


@pytest.mark.parametrize(
    "misses",
    [
        pytest.param(lambda index, number: index and number % 70, id="once in very long"),
        pytest.param(lambda index, number: number % (2, 3)[index], id="nobody once a round"),
        pytest.param(lambda index, number: number // 8 % 2 != index, id="eight in a row each"),
    ],
)
def test_without_an_order_all_steps_are_sampled(misses: Callable[[int, int], bool]) -> None:
    recorded = alternating_unless(misses, 150)
    for index in (0, 1):
        taken = sum(not misses(index, number) for number in range(1, 151))
        assert [r.step for r in recorded.records(index)] == list(range(1, taken + 1))


def test_an_optimizer_that_stops_while_steps_are_skipped_ends_the_skip() -> None:
    recorded = alternating_unless(lambda index, number: bool(index) and number >= 10, STEPS)
    # A step was announced for later; where the other one does not come, watching goes on at once.
    assert [r.step for r in recorded.records(0)] == [1, 2, 3, 4, *range(12, STEPS + 1)]
    assert [r.step for r in recorded.records(1)] == [1, 2, 3, 4]
    assert not recorded.evaluation().findings


def test_a_second_optimizer_that_comes_later_ends_the_skip() -> None:
    one, other, recorded = tiny_model(0), tiny_model(1), Recording()
    with recording(recorded, rare_sampler()):
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1)]
        for number, window in enumerate(windows(12), start=1):
            if number == 8:
                optimizers.append(torch.optim.SGD(other.parameters(), lr=0.1))
            for model, optimizer in zip((one, other), optimizers, strict=False):
                cross_entropy(model, window[0]).backward()
                optimizer.step()
                optimizer.zero_grad()
    # Its first step ends the rest; of the other's window a part was missed, and it is left out.
    assert [r.step for r in recorded.records(0)] == [1, 2, 3, 4, 10, 11, 12]
    assert [r.step for r in recorded.records(1)] == [2, 3, 4, 5]
    assert not recorded.evaluation().findings


def test_hooks_that_are_removed_while_steps_are_skipped_leave_nothing_and_can_come_back() -> None:
    model, recorded = tiny_model(), Recording()
    recorder = Recorder(recorded.steps.append, rare_sampler())
    recorder.install()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(steps: int) -> None:
        for window in windows(steps):
            cross_entropy(model, window[0]).backward()
            optimizer.step()
            optimizer.zero_grad()

    train(10)
    recorder.uninstall()
    assert not hasattr(torch.autograd.backward, "__wrapped__")
    recorder.windows.discard_open()
    recorder.install()
    train(8)
    recorder.uninstall()
    assert [r.step for r in recorded.records()] == [1, 2, 3, 4, 17, 18]
    assert not recorded.evaluation().findings
