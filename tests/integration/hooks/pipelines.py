"""Trains pipelines with gloo under each schedule, with hooks and without, and saves the records.

    python pipelines.py RANK STORE OUTPUT

Not a test itself: the tests start two of these and judge what both wrote.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage

from gradledger.capture.step_sampling import StepSampler
from helpers.training import Recording, recording
from museum.parts import staged_lm, text, token_loss, valid, whole_batch

RANKS = 2
WINDOWS = 6

# Schedule, and the stages of each rank.
SCHEDULES: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "GPipe": ("ScheduleGPipe", ((0,), (1,))),
    "1F1B": ("Schedule1F1B", ((0,), (1,))),
    "interleaved": ("ScheduleInterleaved1F1B", ((0, 2), (1, 3))),
    "interleaved zero bubble": ("ScheduleInterleavedZeroBubble", ((0, 2), (1, 3))),
    "zero bubble V": ("ScheduleZBVZeroBubble", ((0, 3), (1, 2))),
    "1F1B, FSDP2": ("Schedule1F1B", ((0,), (1,))),
}


def train(
    name: str, rank: int, watched: AbstractContextManager[object], scale: bool
) -> list[Tensor]:
    """The parameters of this rank's stages after some steps."""
    torch.manual_seed(0)
    schedule_name, stages_of = SCHEDULES[name]
    own = stages_of[rank]
    model = staged_lm(sum(map(len, stages_of)))
    count = 0

    def share(logits: Tensor, labels: Tensor) -> Tensor:
        return token_loss(logits, labels, "sum") / count

    if "FSDP2" in name:
        alone = dist.device_mesh.DeviceMesh("cpu", [[0], [1]], mesh_dim_names=("pp", "dp"))
        for i in own:
            fully_shard(model[i], mesh=alone["dp"])
    with watched:
        stages = [PipelineStage(model[i], i, len(model), torch.device("cpu")) for i in own]
        kind = getattr(pipelining, schedule_name)
        arguments: dict[str, Any] = {"loss_fn": share, "scale_grads": scale}
        schedule = kind(stages if len(own) > 1 else stages[0], 4, **arguments)
        parameters = [p for i in own for p in model[i].parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=0.01)
        for window in text(WINDOWS):
            ids, labels = whole_batch(window)
            count = valid(labels)
            inputs = [ids] if 0 in own else []
            targets = {"target": labels} if len(model) - 1 in own else {}
            schedule.step(*inputs, **targets)
            optimizer.step()
            optimizer.zero_grad()
    return [getattr(p, "_local_tensor", p).detach() for p in parameters]


def row(name: str, rank: int) -> dict[str, Any]:
    """One schedule: with the hooks, with steps that they skip, and without."""
    recorded = Recording()
    sampler = StepSampler(1e-12, first_steps=2, burst=2, longest_period=4)
    return {
        "alone": train(name, rank, nullcontext(), scale=True),
        "watched": train(name, rank, recording(recorded), scale=True),
        "in part": train(name, rank, recording(None, sampler), scale=True),
        "lines": recorded.lines(),
        "unscaled": train(name, rank, recording(right := Recording()), scale=False),
        "right": right.lines(),
    }


def main(rank: int, store: str, output: str) -> None:
    """All rows, one after the other, in one process group."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    torch.save({name: row(name, rank) for name in SCHEDULES}, output)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
