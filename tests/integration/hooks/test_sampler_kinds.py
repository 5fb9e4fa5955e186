"""Whether the loader of a training shuffles, also if it got a batch sampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from helpers.training import recording

DATA = TensorDataset(torch.randn(8, 3), torch.arange(8) % 4)


class Shared(BatchSampler):
    """The batches of another batch sampler, as Accelerate shares them out."""

    def __init__(self, batch_sampler: BatchSampler) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.batch_sampler


def batches(sampler: Any) -> BatchSampler:
    """Batches of two."""
    return BatchSampler(sampler, 2, drop_last=False)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"batch_size": 2, "shuffle": True}, "random"),
        ({"batch_size": 2}, "sequential"),
        ({"batch_sampler": batches(RandomSampler(DATA))}, "random"),
        ({"batch_sampler": batches(SequentialSampler(DATA))}, "sequential"),
        ({"batch_sampler": Shared(batches(RandomSampler(DATA)))}, "random"),
        ({"batch_sampler": batches(DistributedSampler(DATA, 2, 0))}, "random"),
        ({"batch_sampler": [[0, 1], [2, 3], [4, 5], [6, 7]]}, None),
        ({"batch_size": None, "sampler": RandomSampler(DATA)}, "random"),
    ],
)
def test_the_kind_of_sampler(options: dict[str, Any], kind: str | None) -> None:
    model = nn.Linear(3, 4)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(DATA, **options):
            F.cross_entropy(model(x).reshape(-1, 4), y.reshape(-1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert {facts.record.sampler for facts in recorded.facts()} == {kind}
