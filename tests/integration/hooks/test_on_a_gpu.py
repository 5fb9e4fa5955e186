"""On a CUDA device: nothing waits for it, values are read late, and NCCL's collectives count.

A CUDA graph is captured as without the hooks: see ``observers/graph_captures.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from gradledger.capture.recorder import Recorder
from gradledger_monitor.model.numbers import number
from helpers.loops import answer, count
from helpers.patience import HANGS
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
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


def test_fsdp2_over_nccl_on_one_rank(tmp_path: Path) -> None:
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)

    def train(watched: AbstractContextManager[object]) -> list[Tensor]:
        model = tiny_model().cuda()
        for part in (*(p for p in model if isinstance(p, nn.Linear)), model):  # type: ignore[attr-defined]
            fully_shard(part)
        with watched:
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            for window in on_device(6):
                for index, batch in enumerate(window):
                    model.set_requires_gradient_sync(index == len(window) - 1)  # type: ignore[operator]
                    (cross_entropy(model, batch, reduction="sum") / count(window)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
                optimizer.zero_grad()
        return [p.full_tensor() for p in model.parameters()]  # type: ignore[attr-defined]

    recorded = Recording()
    try:
        for ours, theirs in zip(train(recording(recorded)), train(nullcontext()), strict=True):
            assert torch.equal(ours, theirs)
    finally:
        dist.destroy_process_group()
    assert answer(recorded) == ({}, "balanced")


def replayed(watched: AbstractContextManager[object], captures_step: bool) -> list[Tensor]:
    """Three steps, then a graph of a step, or of its backward alone, that is replayed."""
    model, [[(inputs, labels), *_]] = tiny_model().cuda(), on_device(1)
    with watched:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)

        def step(applies: bool = True) -> None:
            optimizer.zero_grad()
            cross_entropy(model, (inputs, labels)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            if applies:
                optimizer.step()

        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(captures_step)
        for _ in range(4):
            graph.replay()
            if not captures_step:
                optimizer.step()
    return list(model.parameters())


@pytest.mark.parametrize("captures_step", [True, False])
def test_what_a_graph_repeats_is_not_recorded(captures_step: bool) -> None:
    recorded = Recording()
    watched = replayed(recording(recorded), captures_step)
    for ours, theirs in zip(watched, replayed(nullcontext(), captures_step), strict=True):
        assert torch.equal(ours, theirs)
    counts = [len(record.micro_batches) for record in recorded.records()]
    assert counts == [1] * 3 + [0] * (0 if captures_step else 4)
    assert not accused(recorded.evaluation())


CAPTURES_WHILE_VALUES_ARRIVE = """
import time, torch, gradledger
ledger = gradledger.watch(url="http://127.0.0.1:9", overhead=None)
model = torch.nn.Linear(4, 1).cuda()
optimizer, rounds = torch.optim.SGD(model.parameters(), lr=0.1), torch.zeros(8, device="cuda")
for _ in range(4):
    model(torch.ones(2, 4, device="cuda")).mean().backward()
    optimizer.step()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        end = time.monotonic() + 0.3  # several ticks of the background thread
        while time.monotonic() < end:
            rounds += 1
ledger.close()
"""


def test_the_background_thread_reads_nothing_during_a_capture(tmp_path: Path) -> None:
    environment = os.environ | {"GRADLEDGER_SPOOL": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", CAPTURES_WHILE_VALUES_ARRIVE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert ended.returncode == 0, ended.stderr
    assert "5 records not sent yet" in ended.stderr, ended.stderr


def test_a_window_that_no_step_closed_is_reported() -> None:
    recorded, [window] = Recording(), on_device(1)
    recorder = Recorder(recorded.steps.append)
    recorder.install()
    model = tiny_model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in window * 20:
        cross_entropy(model, batch).backward()
    recorder.finish()
    recorder.uninstall()
    del optimizer
    assert set(accused(recorded.evaluation())) == {"loop.never_stepped"}
