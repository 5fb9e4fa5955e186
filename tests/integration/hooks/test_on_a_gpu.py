"""On a CUDA device: nothing waits for it, the scale is read late, and NCCL's collectives count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradledger_monitor.model.numbers import number
from helpers.training import (
    Batches,
    Recording,
    accused,
    cross_entropy,
    recording,
    tiny_model,
    windows,
)

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device here"
)

STEPS = 20
OVERFLOWING = 2.0**24


def on_device(count: int) -> list[Batches]:
    """The data, copied before anyone looks at what waits."""
    data = [[(x.cuda(), y.cuda()) for x, y in window] for window in windows(count)]
    torch.cuda.synchronize()
    return data


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """PyTorch raises on any of its calls that would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def clipped(watched: AbstractContextManager[object], data: list[Batches]) -> list[Tensor]:
    """bf16 autocast, accumulation, clipping: a loop that never waits by itself."""
    model = tiny_model().cuda()
    with watched:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
        with waiting_is_an_error():
            for window in data:
                for batch in window:
                    with torch.autocast("cuda", dtype=torch.bfloat16):
                        loss = cross_entropy(model, batch) / len(window)
                    loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
                optimizer.zero_grad()
    return list(model.parameters())


def scaled(watched: AbstractContextManager[object], data: list[Batches]) -> list[Tensor]:
    """fp16 with a GradScaler whose first steps overflow; it waits for the device itself."""
    model = tiny_model().cuda()
    scaler = torch.amp.GradScaler("cuda", init_scale=OVERFLOWING, growth_interval=4)
    with watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in data:
            for batch in window:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = cross_entropy(model, batch) / len(window)
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return [*model.parameters(), torch.tensor(scaler.get_scale())]


@pytest.mark.parametrize("train", [clipped, scaled])
def test_twenty_steps_end_in_the_same_bits_and_the_hooks_wait_for_nothing(train: object) -> None:
    assert callable(train)
    recorded, data = Recording(), on_device(STEPS)
    watched, alone = train(recording(recorded), data), train(nullcontext(), data)
    for ours, theirs in zip(watched, alone, strict=True):
        assert torch.equal(ours, theirs)
    assert set(accused(recorded.evaluation())) == {"reduction.token_weights_unequal"}


def test_the_scale_of_each_step_is_the_one_that_was_in_force() -> None:
    recorded = Recording()
    *_, last = scaled(recording(recorded), on_device(STEPS))
    scalers = [record.scaler for record in recorded.records()]
    scales = [float(number(scaler.scale) or 0) for scaler in scalers if scaler is not None]
    assert len(scales) == STEPS and scales[0] == OVERFLOWING
    assert recorded.records()[0].skipped
    assert float(last) in (scales[-1], scales[-1] * 2, scales[-1] / 2)


def test_collectives_of_nccl_are_counted(tmp_path: Path) -> None:
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    recorded = Recording()
    try:
        model = DistributedDataParallel(tiny_model().cuda())
        with recording(recorded):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for window in on_device(4):
                for index, batch in enumerate(window):
                    last = index == len(window) - 1
                    with nullcontext() if last else model.no_sync():
                        (cross_entropy(model, batch) / len(window)).backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        dist.destroy_process_group()
    for record in recorded.records():
        *before, last_one = [m.collectives for m in record.micro_batches]
        assert not any(before) and last_one
