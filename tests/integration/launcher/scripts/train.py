"""A small training in plain PyTorch, on one rank or under torchrun, correct or with a bug."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

Window = list[tuple[Tensor, Tensor]]


def window_of(rank: int, step: int) -> Window:
    """Four micro-batches of unequal length, different on every rank and at every step."""
    random = torch.Generator().manual_seed(1000 * rank + step)
    lengths = torch.randint(4, 60, (4,), generator=random).tolist()
    draws = (torch.randint(0, 16, (n + 1,), generator=random) for n in lengths)
    return [(text[:-1], text[1:]) for text in draws]


def mean_of_means(model: nn.Module, window: Window, ranks: int) -> None:
    """Wrong: every micro-batch has equal weight."""
    for text, following in window:
        (F.cross_entropy(model(text), following) / len(window)).backward()


def token_mean(model: nn.Module, window: Window, ranks: int) -> None:
    """Correct: divided by the tokens of the window over all ranks, times the divisor of DDP."""
    count = torch.tensor(sum(len(following) for _, following in window))
    if ranks > 1:
        dist.all_reduce(count)
    for text, following in window:
        loss = F.cross_entropy(model(text), following, reduction="sum")
        (loss * ranks / count).backward()


def without_compiler() -> None:
    """Replace the compiler by a stub: an optimizer would import it, which takes a second."""
    nothing = SimpleNamespace(disable=lambda f, *_, **__: f, graph_break=lambda: None)
    torch._dynamo = sys.modules["torch._dynamo"] = nothing  # type: ignore[assignment]


def train(loop: str, steps: int, gate: str) -> None:
    """Train for ``steps`` optimizer steps; after half of them, wait for a line from ``gate``."""
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
    if ranks > 1:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    else:
        without_compiler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward = {"mean-of-means": mean_of_means, "token-mean": token_mean}[loop]
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, window_of(rank, step), ranks)
        optimizer.step()
        if gate and step + 1 == steps // 2:
            with open(gate) as lines:
                lines.readline()
    sys.stdout.write(f"trained {steps}\n")
    if ranks > 1:
        dist.destroy_process_group()
        time.sleep(0.3)  # gloo's worker may still hold the last collective


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
