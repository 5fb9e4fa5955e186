"""What the training-side benchmarks train: real optimizer steps of the demo's small GPT.

A window has K micro-batches. Tokens have the weights of one large batch, and the loop clips by
default. ``GPT`` takes about 15 ms for a step here and ``TINY`` about 1 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn

from gradledger_monitor.demo import byte_lm

K = 4
DEMO_K, DEMO_LENGTH = 8, 128  # as in `gradledger demo`: bytes of a typical paragraph

Window = list[tuple[Tensor, Tensor]]


class Bytewise(nn.Module):
    """Almost no work, so that the cost of the hooks is visible."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.bytes = nn.Embedding(byte_lm.VOCABULARY, width)
        self.head = nn.Linear(width, byte_lm.VOCABULARY)

    def forward(self, text: Tensor) -> Tensor:
        """Logits from each byte alone."""
        logits: Tensor = self.head(self.bytes(text))
        return logits


@dataclass(frozen=True)
class Size:
    """A model, and how long its texts are."""

    name: str
    model: Callable[[], nn.Module]
    length: int
    k: int = K  # micro-batches in a step, by default
    optimizers: int = 1  # that share the parameters and the backwards


GPT = Size("small GPT", byte_lm.ByteTransformer, 16)
PAIR = Size("small GPT, two optimizers", byte_lm.ByteTransformer, 16, optimizers=2)
TINY = Size("minimal model", Bytewise, 16)
DEMO = Size("the demo", byte_lm.ByteTransformer, DEMO_LENGTH, DEMO_K)


class Loop:
    """A training that takes one step at a time."""

    def __init__(self, size: Size = GPT, k: int | None = None, clips: bool = True) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = size.model()
        self.parameters = list(self.model.parameters())
        self.optimizers = [
            torch.optim.AdamW(self.parameters[first :: size.optimizers], lr=0.0)
            for first in range(size.optimizers)
        ]
        self.clips = clips
        self._windows = windows(size.length, k or size.k)

    def window(self) -> Window:
        """The next window's text, which the clock need not see."""
        return next(self._windows)

    def step(self, window: Window) -> float:
        """One optimizer step; the loss."""
        loss = byte_lm.token_mean(self.model, window)
        if self.clips:
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss


def windows(length: int, k: int) -> Iterator[Window]:
    """Text of one length, for ever; every micro-batch lacks some bytes at its end."""
    for seed in count():
        drawn = torch.Generator().manual_seed(seed)
        window = []
        for _ in range(k):
            text = torch.randint(byte_lm.PAD, (byte_lm.PARAGRAPHS, length + 1), generator=drawn)
            text[0, length - int(torch.randint(length // 2, (), generator=drawn)) :] = byte_lm.PAD
            window.append((text[:, :-1], text[:, 1:]))
        yield window
