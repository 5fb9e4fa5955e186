"""Gradient accumulation in plain PyTorch with equal weight for every token.

gradledger check -- python examples/plain_loop.py
gradledger check -- python examples/plain_loop.py --mean-of-means    # the classic bug
"""

import random
import sys

import torch
import torch.nn.functional as F
from torch import nn

STEPS, MICRO_BATCHES, VOCABULARY, PAD = 10, 4, 32, -100


def micro_batch():
    """Three padded sentences of very different lengths; the label is the next word."""
    rows = [torch.randint(VOCABULARY, (random.randint(4, 60),)) for _ in range(3)]
    words = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return words[:, :-1], labels[:, 1:]


def cross_entropy(model, words, labels, reduction):
    return F.cross_entropy(model(words).flatten(0, 1), labels.flatten(), reduction=reduction)


random.seed(0)
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Tanh(), nn.Linear(16, VOCABULARY))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for _ in range(STEPS):
    window = [micro_batch() for _ in range(MICRO_BATCHES)]
    tokens = sum((labels != PAD).sum() for _, labels in window)
    for words, labels in window:
        if "--mean-of-means" in sys.argv:
            loss = cross_entropy(model, words, labels, "mean") / MICRO_BATCHES
        else:
            loss = cross_entropy(model, words, labels, "sum") / tokens
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"trained {STEPS} steps")
