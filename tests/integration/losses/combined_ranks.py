"""Trains on two ranks that combine their gradients by themselves, and saves the records.

    python combined_ranks.py RANK STORE OUTPUT

Not a test itself: the tests start two of these and judge what both wrote.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from helpers.training import (
    Batches,
    Witness,
    cross_entropy,
    recording,
    tiny_model,
    tokens,
    windows,
)

RANKS = 2
WINDOWS = 4

Combine = Callable[[nn.Module], None]
Share = Callable[[int, int], float]  # the divisor, of the tokens of this rank and of all


# ---------------------------------------------------------------------- after backward, by hand


def gradients(model: nn.Module) -> list[Tensor]:
    """Those that are there."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def times(factor: float) -> Combine:
    """The sum over the ranks, times a factor."""

    def combine(model: nn.Module) -> None:
        for gradient in gradients(model):
            dist.all_reduce(gradient)
            gradient *= factor

    return combine


def flattened(model: nn.Module) -> None:
    """One bucket for all gradients, averaged and copied back."""
    bucket = torch.cat([gradient.flatten() for gradient in gradients(model)])
    dist.all_reduce(bucket)
    bucket /= RANKS
    parts = bucket.split([gradient.numel() for gradient in gradients(model)])
    for gradient, part in zip(gradients(model), parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def clipped(model: nn.Module) -> None:
    """Averaged, then clipped."""
    times(1 / RANKS)(model)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def scaled_and_clipped(model: nn.Module) -> None:
    """Added up, multiplied by a number of the rank, and clipped: all step on one gradient again."""
    for gradient in gradients(model):
        dist.all_reduce(gradient)
        gradient *= 1 + dist.get_rank()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def clipped_before(limit: float) -> Combine:
    """Each rank clips its own gradient, and then they are averaged."""

    def combine(model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        times(1 / RANKS)(model)

    return combine


def by_rank(model: nn.Module) -> None:
    """Every rank weighs its own gradient before the sum."""
    for gradient in gradients(model):
        gradient *= 0.5 + dist.get_rank()
    times(1 / RANKS)(model)


def loss_all_reduced(model: nn.Module) -> None:
    """The ranks all-reduce a loss, and step on their own gradients."""
    dist.all_reduce(torch.zeros(()))


# ---------------------------------------------------------------------- within backward, by DDP


def hooked(factor: float) -> Any:
    """A comm hook of the user's own: the sum over the ranks, times a factor."""

    def combine(bucket: Any) -> torch.futures.Future[Tensor]:
        work: Any = dist.all_reduce(bucket.buffer() * factor, async_op=True)
        future: torch.futures.Future[Tensor] = work.get_future().then(lambda f: f.value()[0])
        return future

    return lambda state, bucket: combine(bucket)


def rounded(bucket: Any) -> torch.futures.Future[Tensor]:
    """Keeps a decimal of each: what is applied is no sum of anything."""
    future: torch.futures.Future[Tensor] = hooked(1)(None, bucket)
    return future.then(lambda f: (f.value() * 100).round() / 100)


# ---------------------------------------------------------------------- the loops


def everyones(window: Batches) -> tuple[int, int]:
    """Tokens of this rank, and of all ranks."""
    mine = sum(map(tokens, window))
    of_all = torch.tensor(mine)
    dist.all_reduce(of_all)
    return mine, int(of_all)


class Communicating(torch.optim.Optimizer):
    """Communicates in its step, after all hooks that run before one."""

    combine: Callable[[], None]

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of plain SGD."""
        self.combine()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad


def train(
    combine: Combine,
    share: Share,
    data: list[Batches],
    k: int = 4,
    in_step: Literal["hook", "optimizer"] | None = None,
) -> dict[str, Any]:
    """No wrapper: whatever is combined is combined before the step, or when it has begun."""
    model = tiny_model()
    with recording() as recorded:
        kind = Communicating if in_step == "optimizer" else torch.optim.SGD
        optimizer = kind(model.parameters(), lr=0.01)
        if isinstance(optimizer, Communicating):
            optimizer.combine = lambda: combine(model)
        elif in_step:
            optimizer.register_step_pre_hook(lambda *_: combine(model))
        witness = Witness(model, optimizer)
        for window in data:
            divisor = share(*everyones(window[:k]))
            for batch in window[:k]:
                (cross_entropy(model, batch, reduction="sum") / divisor).backward()
            if not in_step:
                combine(model)
            optimizer.step()
            optimizer.zero_grad()
    return row(recorded.lines(), witness, data, k)


def wrapped(
    hook: Any, share: Share, data: list[Batches], k: int = 4, first: int | None = None
) -> dict[str, Any]:
    """DDP with a comm hook, synchronised from a micro-batch on: by the last one alone."""
    model = tiny_model()
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(None, hook)
    first = k - 1 if first is None else first
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        witness = Witness(model, optimizer)
        for window in data:
            divisor = share(*everyones(window[:k]))
            for index, batch in enumerate(window[:k]):
                with nullcontext() if index >= first else parallel.no_sync():
                    (cross_entropy(parallel, batch, reduction="sum") / divisor).backward()
            optimizer.step()
            optimizer.zero_grad()
    left = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    return {**row(recorded.lines(), witness, data, k), "hooks left": left}


def moved(factor: float, data: list[Batches], inside: bool = False) -> dict[str, Any]:
    """Hooks move the gradients to ``main_grad`` inside backward, as Megatron's do.

    The sum over the ranks, times a factor, is made there by the last backward (``inside``), or
    after it.
    """
    model, last = tiny_model(), False
    trained: list[Any] = list(model.parameters())

    def combine(parameter: Any) -> None:
        dist.all_reduce(parameter.main_grad)
        parameter.main_grad *= factor

    def move(parameter: Any) -> None:
        parameter.main_grad += parameter.grad
        parameter.grad = None
        if last and inside:
            combine(parameter)

    for parameter in trained:
        parameter.main_grad = torch.zeros_like(parameter)
        parameter.register_post_accumulate_grad_hook(move)
    with recording() as recorded:
        optimizer = torch.optim.SGD(trained, lr=0.01)
        witness = Witness(model, optimizer)
        for window in data:
            divisor = everyones(window)[1] / RANKS
            for index, batch in enumerate(window):
                last = index == len(window) - 1
                (cross_entropy(model, batch, reduction="sum") / divisor).backward()
            for parameter in trained:
                if not inside:
                    combine(parameter)
                parameter.grad = parameter.main_grad.clone()
                parameter.main_grad.zero_()
            optimizer.step()
            optimizer.zero_grad()
    return row(recorded.lines(), witness, data, len(data[0]))


def head_outside(combine: Combine, data: list[Batches]) -> dict[str, Any]:
    """DDP holds all but the last layer, whose gradients the loop combines."""
    model = tiny_model()
    assert isinstance(model, nn.Sequential)
    body, head = DistributedDataParallel(model[:-1]), model[-1]
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        witness = Witness(model, optimizer)
        for window in data:
            divisor = everyones(window)[1] / RANKS
            for index, batch in enumerate(window):
                with nullcontext() if index == len(window) - 1 else body.no_sync():
                    loss = cross_entropy(lambda x: head(body(x)), batch, reduction="sum")
                    (loss / divisor).backward()
            combine(head)
            optimizer.step()
            optimizer.zero_grad()
    return row(recorded.lines(), witness, data, len(data[0]))


def thawed(data: list[Batches]) -> dict[str, Any]:
    """The first layer required no gradients when DDP was created, which leaves it out."""
    model = tiny_model()
    layer = next(iter(model.children()))
    layer.requires_grad_(False)
    with recording() as recorded:
        parallel = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        witness = Witness(model, optimizer)
        for index, window in enumerate(data):
            if index == 1:
                layer.requires_grad_(True)
            share = everyones(window[:1])[1] / RANKS
            (cross_entropy(parallel, window[0], reduction="sum") / share).backward()
            optimizer.step()
            optimizer.zero_grad()
    return row(recorded.lines(), witness, data, 1)


def extended(data: list[Batches]) -> dict[str, Any]:
    """After the first step a layer is added, to the model in DDP and to its optimizer."""
    model: Any = tiny_model()
    with recording() as recorded:
        parallel = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        witness = Witness(model, optimizer)
        for index, window in enumerate(data):
            if index == 1:
                size = model[-1].out_features
                model.append(torch.nn.Linear(size, size))
                optimizer.add_param_group({"params": list(model[-1].parameters())})
            share = everyones(window[:1])[1] / RANKS
            (cross_entropy(parallel, window[0], reduction="sum") / share).backward()
            optimizer.step()
            optimizer.zero_grad()
    return row(recorded.lines(), witness, data, 1)


def replaced(data: list[Batches]) -> dict[str, Any]:
    """A checkpoint is loaded with ``assign``: DDP has the parameters from before."""
    model = tiny_model()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with recording() as recorded:
        parallel = DistributedDataParallel(model)
        model.load_state_dict(state, assign=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        witness = Witness(model, optimizer)
        for window in data:
            share = everyones(window[:1])[1] / RANKS
            (cross_entropy(parallel, window[0], reduction="sum") / share).backward()
            optimizer.step()
            optimizer.zero_grad()
    return row(recorded.lines(), witness, data, 1)


def row(lines: list[bytes], witness: Witness, data: list[Batches], k: int) -> dict[str, Any]:
    """The data that a test needs to evaluate a row."""
    steps = [(step.parameters, step.gradient) for step in witness.steps]
    return {"lines": lines, "steps": steps, "windows": [window[:k] for window in data]}


def of_all(factor: float) -> Share:
    """Divide by a multiple of the tokens of all ranks."""
    return lambda mine, everyones: everyones * factor


def rows(data: list[Batches]) -> dict[str, dict[str, Any]]:
    """All ways, one after the other."""
    fair = of_all(1 / RANKS)  # for gradients that are then averaged
    half = 1 / RANKS
    return {
        "averaged": train(times(half), fair, data),
        "summed": train(times(1), of_all(1), data),
        "flattened": train(flattened, fair, data),
        "clipped": train(clipped, fair, data),
        "scaled and clipped": train(scaled_and_clipped, fair, data),
        "clipped before": train(clipped_before(1e-3), fair, data),
        "not clipped before": train(clipped_before(1e3), fair, data),
        "never divided": train(times(1), fair, data),
        "never divided, K = R": train(times(1), fair, data, k=2),
        "divided twice": train(times(half / RANKS), fair, data),
        "K forgotten": train(times(half), of_all(1 / RANKS / 4), data),
        "own count": train(times(half), lambda mine, everyones: mine, data),
        "by rank": train(by_rank, fair, data),
        "loss all-reduced": train(loss_all_reduced, lambda mine, everyones: mine, data),
        "averaged in the step": train(times(half), fair, data, in_step="hook"),
        "divided twice in the step": train(times(half / RANKS), fair, data, in_step="hook"),
        "out of sight": train(loss_all_reduced, fair, data, in_step="optimizer"),
        "hook averages": wrapped(hooked(half), fair, data),
        "hook averages, K = 1": wrapped(hooked(half), fair, data, k=1),
        "hook averages each": wrapped(hooked(half), fair, data, first=0),
        "hook sums": wrapped(hooked(1), fair, data),
        "hook sums each": wrapped(hooked(1), fair, data, first=0),
        "fp16 compressed": wrapped(fp16_compress_hook, fair, data),
        "moved": moved(half, data),
        "moved, never divided": moved(1, data),
        "moved, averaged inside": moved(half, data, inside=True),
        "moved, summed inside": moved(1, data, inside=True),
        "head averaged": head_outside(times(half), data),
        "head summed": head_outside(times(1), data),
        "head times 3": head_outside(times(3), data),
        "head combined by rank": head_outside(by_rank, data),
        "head without, loss all-reduced": head_outside(loss_all_reduced, data),
        "thawed": thawed(data),
        "extended": extended(data),
        "replaced": replaced(data),
        "hook rounds": wrapped(lambda state, bucket: rounded(bucket), fair, data),
    }


def main(rank: int, store: str, output: str) -> None:
    """All rows in one process group."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    torch.save(rows(windows(WINDOWS, seed=rank)), output)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
