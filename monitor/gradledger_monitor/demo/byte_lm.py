"""Train a small byte-level transformer on the manual that comes with Python, in plain PyTorch.

One optimizer step accumulates the gradients of eight micro-batches, in one of two ways that look
alike, run alike and differ:

    python byte_lm.py --accumulate mean-of-means
    python byte_lm.py --accumulate token-mean
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 257  # the bytes, and one to pad with
PAD = 256
CONTEXT = 384
PARAGRAPHS = 2  # in a micro-batch
MICRO_BATCHES = 8  # in an optimizer step


class ByteTransformer(nn.Module):
    """A decoder with a few hundred thousand parameters."""

    def __init__(self, width: int = 96, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, text: Tensor) -> Tensor:
        """The logits of the next byte after each byte."""
        length = text.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        hidden = self.bytes(text) + self.positions.weight[:length]
        logits: Tensor = self.head(self.layers(hidden, mask=causal, is_causal=True))
        return logits


def micro_batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets, endlessly. Some paragraphs have three lines, some three words."""
    paragraphs = [p.encode() for topic in topics.values() for p in topic.split("\n\n")]
    paragraphs = [p[: CONTEXT + 1] for p in paragraphs if len(p) > 16]
    order = random.Random(seed)
    while True:
        rows = [list(paragraph) for paragraph in order.sample(paragraphs, PARAGRAPHS)]
        longest = max(map(len, rows))
        text = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
        yield text[:, :-1], text[:, 1:]


def mean_of_means(model: nn.Module, window: list[tuple[Tensor, Tensor]]) -> float:
    """The classic loop: the mean of each micro-batch over its own bytes, then the mean of those."""
    reported = 0.0
    for text, targets in window:
        logits = model(text).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), ignore_index=PAD)
        loss = loss / len(window)
        loss.backward()
        reported += loss.item()
    return reported


def token_mean(model: nn.Module, window: list[tuple[Tensor, Tensor]]) -> float:
    """The corrected loop: every byte of the window has the same weight."""
    count = sum(int((targets != PAD).sum()) for _, targets in window)
    reported = 0.0
    for text, targets in window:
        logits = model(text).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), ignore_index=PAD, reduction="sum")
        loss = loss / count
        loss.backward()
        reported += loss.item()
    return reported


ACCUMULATE: dict[str, Callable[[nn.Module, list[tuple[Tensor, Tensor]]], float]] = {
    "mean-of-means": mean_of_means,
    "token-mean": token_mean,
}


def train(accumulate: str, steps: int) -> None:
    """Train in one of the two ways, with the same initial weights and the same data order."""
    torch.manual_seed(0)
    model = ByteTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    text = micro_batches(seed=0)
    for step in range(1, steps + 1):
        window = [next(text) for _ in range(MICRO_BATCHES)]
        loss = ACCUMULATE[accumulate](model, window)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step == 1:
            print(f"  step {step:4d} of {steps}   loss {loss:.4f}", flush=True)


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description="Train a byte-level transformer.")
    parser.add_argument("--accumulate", choices=list(ACCUMULATE), required=True)
    parser.add_argument("--steps", type=int, default=80)
    options = parser.parse_args()
    train(options.accumulate, options.steps)


if __name__ == "__main__":
    main()
