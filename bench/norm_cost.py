"""The gradient norm if the loop does not clip: of the hooks, of the floor and of PyTorch.

The three alternate step by step at the same point of the same loop: before the optimizer step, with
the caches as the last backward left them. The floor is PyTorch's ``_foreach_norm``, ``stack`` and
``norm`` over the same gradients. The time of the hooks is that of the norm's observer.

If the loop clips, the hooks use its norm: they must add no pass over the gradients, counted in
operations that reach a kernel.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
from report import Measure, Report, arguments, below, median_of, publish
from services import service
from torch.utils._python_dispatch import TorchDispatchMode
from training import GPT, Loop

import gradledger
from gradledger.observers.norms.gradient_norm import GradientNorm

HOOKS, FLOOR, CLIP = "norm of the hooks", "norm at the floor", "clip_grad_norm_"
WAYS = (HOOKS, FLOOR, CLIP)
GOAL = 1.1
WARM_UP = 10  # rounds

Times = dict[str, list[float]]  # microseconds


class Timed:
    """Adds up the time in the norm's observer."""

    def __init__(self) -> None:
        self.spent = 0.0
        original: Callable[..., None] = GradientNorm.step_begins

        def step_begins(observer: GradientNorm, *about: Any) -> None:
            began = time.thread_time()
            original(observer, *about)
            self.spent += time.thread_time() - began

        GradientNorm.step_begins = step_begins  # type: ignore[assignment,method-assign]


def floor(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    """The least that gives the norm."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norm


def clip(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    """What a loop calls that clips."""
    return torch.nn.utils.clip_grad_norm_(parameters, 1e9)


def accumulate(loop: Loop) -> None:
    """The gradients of a window."""
    for text, following in loop.window():
        logits = loop.model(text).flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, following.flatten(), ignore_index=256).backward()


def measure(rounds: int) -> Times:
    """Each way once a round."""
    timed = Timed()
    loop = Loop(GPT, clips=False)
    taken: Times = {way: [] for way in WAYS}
    with (
        service("accepts") as url,
        gradledger.watch(loop.model, loop.optimizers[0], url=url, overhead="full") as ledger,
    ):
        for number in range(rounds + WARM_UP):
            for way in WAYS[number % 3 :] + WAYS[: number % 3]:
                took = once(loop, way, timed, ledger)
                if number >= WARM_UP:
                    taken[way].append(took * 1e6)
    return taken


def once(loop: Loop, way: str, timed: Timed, ledger: gradledger.Ledger) -> float:
    """Seconds of one way in one step. The hooks are there in all, so that caches are alike."""
    accumulate(loop)
    timed.spent = took = 0.0
    if way != HOOKS:
        call = floor if way == FLOOR else clip
        ledger.pause()
        began = time.thread_time()
        call(loop.parameters)
        took = time.thread_time() - began
    loop.optimizers[0].step()
    if way != HOOKS:
        ledger.resume()
    loop.optimizers[0].zero_grad()
    if way == HOOKS and not timed.spent:
        raise RuntimeError("the norm's observer was not called: this script looks for it elsewhere")
    return timed.spent if way == HOOKS else took


class Counted(TorchDispatchMode):
    """Counts the operations that reach a kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def operations(hooked: bool, clips: bool) -> Counter[str]:
    """What one step calls."""
    loop = Loop(GPT, clips=clips)
    loop.step(loop.window())
    with service("accepts") as url:
        ledger = (
            gradledger.watch(loop.model, loop.optimizers[0], url=url, overhead="full")
            if hooked
            else None
        )
        loop.step(loop.window())
        window = loop.window()
        with (counted := Counted()):
            loop.step(window)
        if ledger is not None:
            ledger.close()
    return counted.calls


def named(operations: Counter[str]) -> str:
    """How often which."""
    return ", ".join(f"{count} `{name}`" for name, count in operations.most_common()) or "none"


def compared(taken: Times) -> list[Measure]:
    """The ways, and the ratio, whose spread is that of the turns."""
    pairs = [a / b for a, b in zip_longest(taken[HOOKS], taken[FLOOR])]
    low, _, high = statistics.quantiles(pairs, n=4)
    middle = statistics.median(taken[HOOKS]) / statistics.median(taken[FLOOR])
    ratio = Measure("norm of the hooks, relative to the floor", middle, "x", low, high, "1")
    return [*(median_of(way, taken[way], "us") for way in WAYS), below(ratio, GOAL)]


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    report = Report("Gradient norm without clipping", "python bench/norm_cost.py")
    report.measures += compared(measure(options.rounds))
    plain, hooked = (operations(hooked, clips=True) for hooked in (False, True))
    passes = hooked["_foreach_norm"] - plain["_foreach_norm"]
    name = "passes over the gradients that the hooks add if the loop clips"
    report.measures.append(Measure(name, passes, "", goal="0", holds=passes == 0))
    report.notes.append(
        f"If the loop clips, the hooks add these operations to a step: {named(hooked - plain)}."
    )
    plain, hooked = (operations(hooked, clips=False) for hooked in (False, True))
    report.notes.append(
        f"If it does not clip: {named(hooked - plain)}. The floor is one `_foreach_norm`, one "
        f"`stack` and one `linalg_vector_norm`. There are {len(Loop(GPT).parameters)} gradients."
    )
    publish(report, options.json)


if __name__ == "__main__":
    main()
