"""How many samples a flat row of labels holds: read from the graph, or not measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from gradledger.observers.below_losses.sample_counts import sample_count

ROWS, LENGTH, WIDTH, CLASSES = 4, 6, 8, 5
HEAD = nn.Linear(WIDTH, CLASSES)
EMBED = nn.Embedding(CLASSES, WIDTH)
IDS = torch.randint(CLASSES, (ROWS, LENGTH))
FEATURES = torch.randn(ROWS, WIDTH)
IMAGES = torch.randn(ROWS, 3, 4, 4)


def flattened_logits() -> Tensor:
    logits: Tensor = HEAD(EMBED(IDS))
    return logits.view(-1, CLASSES)


def shifted_logits() -> Tensor:
    logits: Tensor = HEAD(EMBED(IDS)).float()
    return logits[:, :-1].contiguous().view(-1, CLASSES)


def flattened_features() -> Tensor:
    logits: Tensor = HEAD(EMBED(IDS).flatten(0, 1))
    return logits


def tokens_in_one_row() -> Tensor:
    """As packed sequences are: no dimension shows where one ends."""
    hidden = EMBED(IDS.flatten())[None, None]
    attended = scaled_dot_product_attention(hidden, hidden, hidden)[0, 0]
    logits: Tensor = HEAD(attended)
    return logits


def perceptron() -> Tensor:
    logits: Tensor = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), HEAD)(FEATURES)
    return logits


def convolutions() -> Tensor:
    net = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    logits: Tensor = HEAD(net(IMAGES))
    return logits


def pooled_convolutions() -> Tensor:
    logits: Tensor = HEAD(nn.Conv2d(3, WIDTH, 3)(IMAGES).mean((2, 3)))
    return logits


def distances() -> Tensor:
    """Of as many rows as make PyTorch compute them by a product of matrices."""
    return -(torch.cdist(HEAD(torch.randn(30, WIDTH)), HEAD(torch.randn(CLASSES, WIDTH))) ** 2)


@pytest.mark.parametrize(
    ("logits", "samples"),
    [
        (flattened_logits, ROWS),
        (shifted_logits, ROWS),
        (flattened_features, ROWS),
        (tokens_in_one_row, None),
        (perceptron, ROWS),
        (distances, 30),
        (convolutions, ROWS),
        (pooled_convolutions, ROWS),
    ],
)
def test_samples_are_what_the_graph_proves(
    logits: Callable[[], Tensor], samples: int | None
) -> None:
    out = logits()
    loss = cross_entropy(out, torch.randint(CLASSES, (len(out),)))
    assert sample_count(loss.grad_fn, len(out)) == samples
