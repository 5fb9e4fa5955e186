"""What the hooks do when a model is freed."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradledger.observers.ranks import collectives, process_groups
from helpers.training import recording


def test_before_a_ddp_model_is_freed_threads_of_gloo_get_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may need the GIL to end, and PyTorch joins them while it holds it."""
    turns: list[bool] = []
    monkeypatch.setattr(collectives, "leave_a_turn", lambda: turns.append(True))
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        with recording():
            model = DistributedDataParallel(nn.Linear(2, 2))
            model(torch.ones(1, 2)).sum().backward()
            assert not turns
            del model
            assert len(turns) == 1
    finally:
        dist.destroy_process_group()


def test_in_a_turn_another_thread_gets_the_gil() -> None:
    begin, ran, interval = threading.Event(), list[bool](), sys.getswitchinterval()

    def worker() -> None:
        begin.wait()
        ran.append(True)

    thread = threading.Thread(target=worker)
    thread.start()
    sys.setswitchinterval(60)  # so that nothing else makes this thread release it
    try:
        begin.set()
        assert ran == []
        for _ in range(1_000):  # one is enough, but a busy machine may not run the other thread
            process_groups.leave_a_turn()
            if ran:
                break
        assert ran == [True]
    finally:
        sys.setswitchinterval(interval)
        thread.join()
