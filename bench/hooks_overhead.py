"""What the hooks cost the training thread: time added to each micro-batch and to each step.

Trains the demo's byte-level transformer, window by window in turn with hooks and without, and
reads the thread's own CPU time (time.thread_time): neither another process nor the background
thread is in it. Two figures of the same thing:

  inside   time between entering and leaving the hooks, added up: little noise, but it leaves out
           what happens inside backward, and caches that the hooks leave cold for the model
  again    what a backward's beginning costs when the hooks do the same once more at once: the
           difference is the caches that the model left cold, which no code of ours can warm
  added    the difference of whole windows with and without: everything, and the noise of the model

Prints medians, and the middle half. Give the number of windows to train as an argument.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradledger.ledger import OpenStep
from gradledger.recorder import Recorder
from gradledger_monitor.demo import byte_lm

TARGET_US = 60.0
BLOCK = 6  # windows in a row, with hooks or without
WARM_UP = 2  # of each block

AGAIN = "  the beginning again"  # is no part of the other figures
LINES = (
    "inside, each micro-batch",
    "  of it, beginning backward",
    AGAIN,
    "inside, each step besides",
)

Window = list[tuple[Tensor, Tensor]]
K = byte_lm.MICRO_BATCHES


class Tiny(nn.Module):
    """Next to no work of its own, so that what the hooks add stands out from the noise."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(byte_lm.VOCABULARY, 8)
        self.head = nn.Linear(8, byte_lm.VOCABULARY)

    def forward(self, text: Tensor) -> Tensor:
        """Logits from each byte alone."""
        logits: Tensor = self.head(self.bytes(text))
        return logits


class TimedRecorder(Recorder):
    """Adds up the time that is spent in the hooks."""

    def __init__(self) -> None:
        self.closed: list[OpenStep] = []
        super().__init__(self.closed.append)
        self.in_backward = self.in_step = self.beginning = self.again = 0.0

    def _begin(self, tensors: Any, lent: bool) -> Any:
        began = time.thread_time()
        self._abandon(super()._begin(tensors, lent))
        between = time.thread_time()
        micro_batch = super()._begin(tensors, lent)
        self.again += time.thread_time() - between
        self.beginning += between - began
        self.in_backward += between - began
        return micro_batch

    def _end(self, micro_batch: Any) -> None:
        began = time.thread_time()
        super()._end(micro_batch)
        self.in_backward += time.thread_time() - began

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        began = time.thread_time()
        super()._before_step(optimizer, args, kwargs)
        self.in_step += time.thread_time() - began

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        began = time.thread_time()
        super()._after_step(optimizer, args, kwargs)
        self.in_step += time.thread_time() - began

    def take(self) -> list[float]:
        """Microseconds for each line of the table; forgets the window."""
        each = [self.in_backward, self.beginning, self.again]
        spent = [*(seconds * 1e6 / K for seconds in each), self.in_step * 1e6]
        self.in_backward = self.in_step = self.beginning = self.again = 0.0
        for step in self.closed:
            step.resolve()  # the background thread's work
        self.closed.clear()
        return spent


def text_of(length: int | None) -> Iterator[Window]:
    """Windows of the demo's text, cut to a length."""
    pieces = byte_lm.micro_batches(seed=0)
    while True:
        window = [next(pieces) for _ in range(K)]
        yield [(text[:, :length], following[:, :length]) for text, following in window]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, window: Window) -> float:
    """One optimizer step as the demo takes it; returns the microseconds that it took."""
    began = time.thread_time()
    byte_lm.token_mean(model, window)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return (time.thread_time() - began) * 1e6


def measure(title: str, model: nn.Module, windows: int, length: int | None) -> float:
    """Train in blocks, print the figures; returns the time inside the hooks of a micro-batch."""
    recorder = TimedRecorder()
    recorder.install()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    recorder.uninstall()
    text = text_of(length)
    inside: list[list[float]] = []
    added, plain = [], []
    for _ in range(max(2, windows // BLOCK)):
        block = [next(text) for _ in range(BLOCK)]
        alone = [train(model, optimizer, window) for window in block]
        recorder.install()
        for number, window in enumerate(block):
            took = train(model, optimizer, window)
            spent = recorder.take()
            if number >= WARM_UP:
                inside.append(spent)
                added.append((took - alone[number]) / K - spent[LINES.index(AGAIN)])
                plain.append(alone[number] / K)
        recorder.uninstall()
    print(f"{title} (a micro-batch takes {statistics.median(plain):,.0f} us without hooks)")
    lines = zip(LINES, zip(*inside, strict=True), strict=True)
    for name, values in lines:
        line(name, list(values))
    line("added, each micro-batch", added)
    return statistics.median(spent for spent, *_ in inside)


def line(name: str, values: list[float]) -> None:
    """One figure."""
    low, middle, high = statistics.quantiles(values, n=4)
    print(f"  {name:28s} {middle:8.1f} us   (middle half {low:.1f} to {high:.1f})")


def main() -> None:
    """Measure, print, and say whether the target holds."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    windows = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    tiny = measure("next to no model", Tiny(), 10 * windows, 16)
    demo = measure("the demo's model and text", byte_lm.ByteTransformer(), windows, None)
    verdict = "holds" if max(tiny, demo) < TARGET_US else "is missed"
    print(f"target: under {TARGET_US:.0f} us for each micro-batch: {verdict}")


if __name__ == "__main__":
    main()
