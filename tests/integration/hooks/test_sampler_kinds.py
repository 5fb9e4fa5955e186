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
    Sampler,
    SequentialSampler,
    TensorDataset,
)

from gradledger_monitor.ingest.schema import StepRecord
from helpers.training import recording

DATA = TensorDataset(torch.randn(8, 3), torch.arange(8) % 4)


class Sorted(BatchSampler):
    """The batches of another batch sampler, sorted."""

    def __init__(self, batch_sampler: BatchSampler) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[list[int]]:
        yield from sorted(self.batch_sampler)


class Shared(Sorted):
    """As those that Accelerate shares out."""


Shared.__module__ = "accelerate.data_loader"


class Unset(Sampler[int]):
    """One with a property that cannot be read yet."""

    @property
    def sampler(self) -> Any:
        """What it draws from."""
        raise RuntimeError("not set")

    shuffle = sampler

    def __iter__(self) -> Iterator[int]:
        yield from range(8)


class Drawn(Sampler[int]):
    """One of the script that draws its order in each epoch, unless that is switched off."""

    def __init__(self, at_random: bool, drop_last: bool = False) -> None:
        self.at_random, self.drop_last = at_random, drop_last

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(8).tolist() if self.at_random else range(8)


class DrawnOnce(Sampler[int]):
    """One whose order is drawn when it is made."""

    def __init__(self) -> None:
        self.order = torch.randperm(8).tolist()

    def __iter__(self) -> Iterator[int]:
        yield from self.order


def batches(sampler: Any) -> BatchSampler:
    """Batches of two."""
    return BatchSampler(sampler, 2, drop_last=False)


def train(options: dict[str, Any]) -> list[StepRecord]:
    """An epoch of a loader with these options."""
    model = nn.Linear(3, 4)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(DATA, **options):
            F.cross_entropy(model(x).reshape(-1, 4), y.reshape(-1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorded.records()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"batch_size": 2, "shuffle": True}, "random"),
        ({"batch_size": 2}, "sequential"),
        ({"batch_sampler": batches(RandomSampler(DATA))}, "random"),
        ({"batch_sampler": batches(SequentialSampler(DATA))}, "sequential"),
        ({"batch_sampler": Shared(batches(RandomSampler(DATA)))}, "random"),
        ({"batch_sampler": Sorted(batches(RandomSampler(DATA)))}, None),
        ({"batch_sampler": batches(DistributedSampler(DATA, 2, 0))}, "random"),
        ({"batch_sampler": [[0, 1], [2, 3], [4, 5], [6, 7]]}, None),
        ({"batch_size": None, "sampler": RandomSampler(DATA)}, "random"),
        ({"batch_size": 2, "sampler": Drawn(at_random=True)}, "random"),
        ({"batch_size": 2, "sampler": Drawn(at_random=False)}, None),
        ({"batch_size": 2, "sampler": DrawnOnce()}, None),
    ],
)
def test_the_kind_of_sampler(options: dict[str, Any], kind: str | None) -> None:
    assert {record.sampler for record in train(options)} == {kind}


def test_a_property_of_a_sampler_is_not_read() -> None:
    records = train({"batch_size": 2, "sampler": Unset()})
    assert {(record.sampler, record.batches) for record in records} == {(None, 1)}
