"""Trains with DeepSpeed's engine on two ranks, at every ZeRO stage, with hooks and without.

    python deepspeed_ranks.py RANK STORE OUTPUT

Not a test itself: the tests start two of these and judge what both wrote.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor

from helpers.training import (
    Batches,
    Recording,
    cross_entropy,
    recording,
    tiny_model,
    tokens,
    windows,
)

RANKS, K, RATE = 2, 4, 0.5
STAGES = (0, 1, 2, 3)

Parameters = dict[str, Tensor]


def loss_of(engine: Any, batch: Any, window: Batches, right: bool) -> Tensor:
    """A share of the mean over all ranks' tokens, given that the engine divides by K and by R."""
    if not right:
        return cross_entropy(engine, batch)
    everyones = torch.tensor(sum(map(tokens, window)))
    dist.all_reduce(everyones)
    return cross_entropy(engine, batch, reduction="sum") * K * RANKS / everyones


def whole(engine: Any) -> Parameters:
    """The parameters as they are on no single rank at stage 3."""
    named = dict(engine.module.named_parameters())
    with deepspeed.zero.GatheredParameters(list(named.values())):
        return {name: p.detach().double().clone() for name, p in named.items()}


def train(
    stage: int, right: bool, watched: AbstractContextManager[object], data: list[Batches]
) -> list[Parameters]:
    """The parameters before the first step, and after each."""
    model = tiny_model()
    with watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config(stage))
        parameters = [whole(engine)]
        for window in data:
            for batch in window:
                engine.backward(loss_of(engine, batch, window, right))
                engine.step()
            parameters.append(whole(engine))
        engine.destroy()
    return parameters


def config(stage: int) -> dict[str, Any]:
    """As a user writes it."""
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": K,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }


def both(stage: int, right: bool, data: list[Batches]) -> dict[str, Any]:
    """With hooks, and without."""
    recorded = Recording()
    watched = train(stage, right, recording(recorded), data)
    alone = train(stage, right, nullcontext(), data)
    return {"watched": watched, "alone": alone, "lines": recorded.lines(), "windows": data}


def main(rank: int, store: str, output: str) -> None:
    """All stages, right and wrong, in one process group."""
    os.environ["LOCAL_RANK"] = str(rank)  # as its launcher does
    # An operator for inference, which it would compile for a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    data = windows(3, seed=rank)
    results = {
        (stage, right): both(stage, right, data) for stage in STAGES for right in (True, False)
    }
    torch.save(results, output)
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's worker thread must not drop its last work while Python ends


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
