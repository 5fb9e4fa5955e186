"""The effective batch in samples, counted by real DataLoaders if the graph proves none."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    TensorDataset,
)

from gradledger_monitor.model.batch_size import samples_of
from gradledger_monitor.model.step_facts import StepFacts
from helpers.training import recording

INPUTS, CLASSES, LENGTH = 6, 4, 5

Batch = list[Tensor]
Drawn = list[Batch]  # the micro-batches of a window


def points(count: int, *shape: int) -> TensorDataset:
    """Inputs, and a class for each sample, or for each of its tokens."""
    torch.manual_seed(0)
    return TensorDataset(
        torch.randn(count, *shape, INPUTS), torch.randint(0, CLASSES, (count, *shape))
    )


class Stream(IterableDataset[Any]):
    """Samples without a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return iter(points(48))


class Gated(nn.Module):
    """Gets rows that were flattened already, and multiplies: its graph does not show samples."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.gate = nn.Linear(INPUTS, CLASSES), nn.Linear(INPUTS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of each row."""
        scores: Tensor = self.head(x) * self.gate(x)
        return scores


def train(windows: Iterator[Drawn]) -> list[StepFacts]:
    """One optimizer step for each window; the target is flattened, as it mostly is."""
    model = Gated()
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows:
            for x, y in window:
                loss = F.cross_entropy(model(x.flatten(0, -2)), y.flatten())
                (loss / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorded.facts()


def accumulated(loader: Any, k: int = 2) -> Iterator[Drawn]:
    """Windows of k batches, the last of an epoch as long as it comes."""
    batches = iter(loader)
    while window := list(islice(batches, k)):
        yield window


def delivered(*loaders: Any) -> Iterator[tuple[Batch, ...]]:
    """A batch of each loader, again and again; the loops over them begin with the training."""
    yield from zip(*loaders, strict=True)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [points(48), points(48, LENGTH)], ids=["classes", "tokens"])
def test_samples_of_a_flat_target_are_the_loaders(dataset: Dataset[Any], workers: int) -> None:
    loader = DataLoader(dataset, 8, drop_last=True, num_workers=workers)
    steps = train(accumulated(loader))
    assert [[samples_of(m, s.record) for _, m in s.applied] for s in steps] == [[8, 8]] * 3
    assert [s.samples for s in steps] == [16] * 3


def test_a_stream_is_counted_too() -> None:
    assert [s.samples for s in train(accumulated(DataLoader(Stream(), 8)))] == [16] * 3


class _RepeatSampler:
    """Yields the batches of a sampler again and again."""

    def __init__(self, sampler: BatchSampler, **more: int) -> None:
        self.sampler = sampler
        self.__dict__.update(more)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


class Halves(_RepeatSampler):
    """Yields the first half of each batch, for one of two ranks that it need not remember."""

    def __iter__(self) -> Iterator[Any]:
        return (batch[: len(batch) // 2] for batch in super().__iter__())


class EpochsOfOneIterator(DataLoader[Any]):
    """Takes each epoch from one iterator, whose workers live on, as YOLO's and timm's loaders."""

    kind: Any = _RepeatSampler

    def __init__(self, dataset: Dataset[Any], more: dict[str, int], **options: Any) -> None:
        super().__init__(dataset, **options)
        object.__setattr__(self, "batch_sampler", self.kind(self.batch_sampler, **more))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return islice(self.iterator, len(self))


def repeated(samples: int, k: int, epochs: int, **options: Any) -> Iterator[Drawn]:
    """Windows of k batches through several epochs of one iterator."""
    loader = EpochsOfOneIterator(points(samples), options.pop("more", {}), batch_size=8, **options)
    batches = (batch for _ in range(epochs) for batch in loader)
    while window := list(islice(batches, k)):
        yield window


def test_a_loader_that_repeats_one_iterator_is_counted_too() -> None:
    assert [s.samples for s in train(repeated(48, 2, 2, drop_last=True))] == [16] * 6
    steps = train(repeated(48, 2, 3))
    assert [s.samples for s in steps] == [16, 16, None] * 3  # the last batch may be short


def test_a_short_batch_inside_a_window_of_two_epochs_is_not_guessed() -> None:
    assert [s.samples for s in train(repeated(44, 4, 2))] == [32, None, None]  # 6 in an epoch


def test_a_sampler_that_may_split_its_batches_is_not_counted() -> None:
    steps = train(repeated(48, 2, 1, drop_last=True, more={"parts": 2}))
    assert {s.samples for s in steps} == {None}


def test_the_last_batch_of_an_epoch_may_be_short_and_is_not_guessed() -> None:
    steps = train(accumulated(DataLoader(points(44), 8)))  # 5 and a half batches
    assert [s.samples for s in steps] == [16, 16, None]


def test_epochs_after_the_first_are_counted_alike() -> None:
    loader = DataLoader(points(48), 8, drop_last=True, num_workers=1, persistent_workers=True)
    steps = train(window for _ in range(3) for window in accumulated(loader))
    assert [s.samples for s in steps] == [16] * 9


def test_a_window_over_the_end_of_an_epoch_does_not_count_the_new_epoch_alone() -> None:
    loader = DataLoader(points(48), 8)
    batches = (batch for _ in range(3) for batch in loader)
    steps = train(iter(lambda: list(islice(batches, 4)), []))
    assert [s.record.batches for s in steps] == [4, None, 4, 4, None]
    assert [s.record.batch_size for s in steps] == [8] * 5
    assert [s.record.batches for s in train(w for _ in range(2) for w in accumulated(loader))] == (
        [2] * 6
    )


def test_a_batch_that_is_cut_into_micro_batches_is_not_counted_twice() -> None:
    cut = (
        [list(pair) for pair in zip(x.chunk(2), y.chunk(2), strict=True)]
        for x, y in DataLoader(points(48), 8, drop_last=True)
    )
    assert [s.samples for s in train(cut)] == [None] * 6


def test_two_loaders_at_once_leave_it_unknown() -> None:
    steps = train([a] for a, _ in delivered(DataLoader(points(48), 8), DataLoader(points(24), 4)))
    assert {s.samples for s in steps} == {None}
    assert [s.record.loader_batches for s in steps] == [[1, 1]] * 6


def test_batches_of_each_of_several_loaders_are_counted_whatever_their_sizes() -> None:
    by_length = DataLoader(points(12), batch_sampler=[[0, 1, 2], [3, 4, 5, 6, 7], [8, 9], [10, 11]])
    steps = train(
        [a, b, c] for a, b, c in delivered(by_length, by_length, DataLoader(points(8), 2))
    )
    assert [s.record.loader_batches for s in steps] == [[2, 1]] * 4


def test_a_loader_that_is_started_again_for_each_batch_is_counted_by_its_starts() -> None:
    loaders = [DataLoader(points(48), 8), DataLoader(points(24), 4)]

    def windows(some: list[Any]) -> Iterator[Drawn]:
        for _ in range(3):
            yield [next(iter(loader)) for loader in some]

    steps = train(windows(loaders))
    assert [s.record.loader_batches for s in steps] == [[1, 1]] * 3
    again = train(windows([loaders[0], loaders[0]]))
    assert [s.record.loader_batches for s in again] == [[]] * 3


def test_an_evaluation_between_steps_does_not_count() -> None:
    def windows() -> Iterator[Drawn]:
        held_out = DataLoader(points(16), 4)
        for window in accumulated(DataLoader(points(48), 8, drop_last=True)):
            with torch.no_grad():
                assert len(list(held_out)) == 4
            yield window

    assert [s.samples for s in train(windows())] == [16] * 3


class Drawing(Sampler[Any]):
    """A sampler of a script, whose length may be drawn."""

    def __init__(self, *elements: Any) -> None:
        self.elements, self.asked = elements, 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)

    def __len__(self) -> int:
        self.asked += 1
        return len(self.elements)


def test_a_sampler_of_the_script_is_not_asked_for_its_length() -> None:
    of_samples, of_batches = Drawing(*range(48)), Drawing(*[[n, n + 1] for n in range(6)])
    by_samples = DataLoader(points(48), 8, sampler=of_samples, drop_last=True)
    assert len(train(accumulated(by_samples))) == 3
    assert len(train(accumulated(DataLoader(points(48), batch_sampler=of_batches)))) == 3
    assert (of_samples.asked, of_batches.asked) == (0, 0)


class Endless(Sampler[int]):
    """Every sample again and again; it has no length."""

    def __iter__(self) -> Iterator[int]:
        return cycle(range(48))


def test_a_sampler_without_a_length_has_no_short_batch() -> None:
    loader = DataLoader(points(48), 8, sampler=Endless())
    assert [s.samples for s in train(islice(accumulated(loader), 5))] == [16] * 5


def test_batches_of_various_sizes_are_not_taken_for_equal_ones() -> None:
    by_length = [[0, 1, 2], [3, 4, 5, 6, 7], [8, 9]]
    loader = DataLoader(points(10), batch_sampler=by_length)
    assert {s.samples for s in train(accumulated(loader, 1))} == {None}


def test_a_sampler_that_may_split_batches_is_not_taken_for_one_that_repeats_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EpochsOfOneIterator, "kind", Halves)
    assert [s.samples for s in train(repeated(48, 2, 1, drop_last=True))] == [None] * 3
