"""On a CUDA device: step time with the hooks relative to without, device waits, gradient norm.

    python bench/device_cost.py [--sizes 100M 1B] [--json FILE]

Trains byte-level GPTs in bf16, and in fp16 with a GradScaler, in blocks of steps alternately with
and without hooks; each block ends when the device is done. Every step with hooks is recorded, as
are the first 256 of a run. Waits are those that PyTorch reports (``set_sync_debug_mode``). The
hooks compute the norm if the loop does not clip; its bandwidth is that of reading every gradient
once, relative to copying as many bytes.

Without a CUDA device it reports that and measures nothing; ``--sizes tiny --device cpu`` tests the
script.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from report import Measure, Report, arguments, median_of, publish
from services import service
from torch import Tensor, nn

import gradledger
from gradledger import session
from gradledger.observers.norms.gradient_norm import GradientNorm
from gradledger_monitor.demo import byte_lm

GOAL = 1.005
K = 4
ROWS = 8  # of byte_lm.CONTEXT bytes, in a micro-batch
MODES = {"bf16": torch.bfloat16, "fp16 + GradScaler": torch.float16}


@dataclass(frozen=True)
class Shape:
    """A model by its shape."""

    width: int
    heads: int
    depth: int


SHAPES = {"tiny": Shape(32, 4, 1), "100M": Shape(768, 12, 14), "1B": Shape(2048, 16, 20)}


class Training:
    """Mixed-precision steps on one device; nothing in it reads a value of the device."""

    def __init__(self, shape: Shape, kind: torch.dtype, device: str) -> None:
        torch.manual_seed(0)
        self.device, self.kind = device, kind
        self.model = byte_lm.ByteTransformer(shape.width, shape.heads, shape.depth).to(device)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-5, foreach=True)
        self.scaler = torch.amp.GradScaler(device, enabled=kind is torch.float16)
        rows = torch.randint(byte_lm.PAD, (K, ROWS, byte_lm.CONTEXT + 1), device=device)
        self.window = [(text[:, :-1], text[:, 1:]) for text in rows]
        self.count = sum(following.numel() for _, following in self.window)

    def step(self, clips: bool = True) -> None:
        """One optimizer step."""
        for text, following in self.window:
            with torch.autocast(self.device, dtype=self.kind):
                loss = self._loss(text, following)
            self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        if clips:
            nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def _loss(self, text: Tensor, following: Tensor) -> Tensor:
        logits = self.model(text).flatten(0, 1)
        total = nn.functional.cross_entropy(logits, following.flatten(), reduction="sum")
        mean: Tensor = total / self.count
        return mean

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, steps: int) -> float:
        """The time of a step, from a block of them."""
        self.wait()
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.wait()
        return (time.perf_counter() - began) / steps


@contextmanager
def hooks(training: Training) -> Iterator[gradledger.Ledger]:
    """In place, with a service that takes everything."""
    with service("accepts") as url:
        ledger = gradledger.watch(training.model, training.optimizer, url=url)
        yield ledger
        ledger.close()


def step_times(name: str, training: Training, pairs: int) -> list[Measure]:
    """Pairs of blocks, one with hooks and one without, the order changing."""
    training.seconds(3)
    steps = max(3, int(1.0 / training.seconds(3)))
    times: dict[bool, list[float]] = {True: [], False: []}
    inside = []
    with hooks(training) as ledger:
        opened = session.current()
        assert opened is not None
        sampler = opened.recorder._step_sampler
        for number in range(pairs):
            for hooked in (True, False) if number % 2 else (False, True):
                ledger.resume() if hooked else ledger.pause()
                training.seconds(2)
                before = sampler.hook_seconds
                times[hooked].append(training.seconds(steps))
                if hooked:
                    inside.append((sampler.hook_seconds - before) / steps / times[hooked][-1])
    ratios = [a / b for a, b in zip(times[True], times[False], strict=True)]
    named = f"{name}, {statistics.median(times[False]) * 1e3:.1f} ms steps"
    return [
        median_of(f"{named}: with hooks over without", ratios, "x", "1", GOAL),
        median_of(f"{named}: inside the hooks", [100 * share for share in inside], "%"),
    ]


def waits(training: Training) -> int:
    """How often one step waits for the device, as PyTorch reports it."""
    training.step()
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training.step()
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(one.message) for one in caught)


def waits_added(name: str, training: Training) -> Measure:
    """What the hooks add to that."""
    plain = waits(training)
    with hooks(training):
        added = waits(training) - plain
    title = f"{name}: waits for the device that the hooks add to a step"
    return Measure(title, added, "", goal="0", holds=added == 0)


# ---------------------------------------------------------------- the norm's pass


def on_the_device(work: Callable[[], object]) -> float:
    """Seconds that the device takes for some work."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    work()
    ended.record()
    ended.synchronize()
    milliseconds: float = began.elapsed_time(ended)
    return milliseconds / 1e3


def norm_share(name: str, training: Training, rounds: int = 20) -> Measure:
    """The bandwidth that the norm reaches, as a share of what copying does."""
    spent: list[float] = []
    original: Callable[..., None] = GradientNorm.step_begins

    def timed(observer: GradientNorm, *about: Any) -> None:
        spent.append(on_the_device(lambda: original(observer, *about)))

    GradientNorm.step_begins = timed  # type: ignore[assignment,method-assign]
    with hooks(training):
        for _ in range(rounds):
            training.step(clips=False)
    GradientNorm.step_begins = original  # type: ignore[method-assign]
    size = sum(p.numel() * p.element_size() for p in training.parameters)
    source = torch.empty(size // 4, device=training.device)
    target = torch.empty_like(source)
    copies = [on_the_device(lambda: target.copy_(source)) for _ in range(rounds)]
    bandwidth = 2 * size / statistics.median(copies)  # a copy reads and writes
    shares = [size / seconds / bandwidth for seconds in spent]
    title = f"{name}: the norm's pass, share of {bandwidth / 1e12:.2f} TB/s"
    return median_of(title, shares, "")


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=list(SHAPES), default=["100M", "1B"])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args()
    cuda = options.device == "cuda"
    if cuda and not torch.cuda.is_available():
        print("There is no CUDA device here: nothing was measured.")
        return
    where = torch.cuda.get_device_name() if cuda else "the processor, a trial"
    report = Report(f"On {where}", "python bench/device_cost.py")
    for size in options.sizes:
        for mode, kind in MODES.items():
            training = Training(SHAPES[size], kind, options.device)
            name = f"{size} parameters, {mode}"
            report.measures += step_times(name, training, options.pairs)
            if cuda:
                report.measures += [waits_added(name, training), norm_share(name, training)]
    publish(report, options.json)


if __name__ == "__main__":
    main()
