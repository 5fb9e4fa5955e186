"""Counts the batches that a script drew from its training DataLoader for a window.

The target of a loss may be flat, and then its shape does not show how many samples it holds. The
loader does. Its iterators count the batches that they have yielded, so no code runs per batch.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler

if TYPE_CHECKING:
    from gradledger.capture.windows import OptimizerWindow


@dataclass
class _Iterator:
    """One iterator of a loader whose batch size is known."""

    batch_size: int
    short_batch: int | None  # the number of the batch that may hold fewer samples
    counted: dict[int, int] = field(default_factory=dict)  # by optimizer: batches at its last step


class DrawnBatches:
    """The iterators over training data that are alive."""

    def __init__(self) -> None:
        # None: the batch size of this iterator's loader is not known.
        self._iterators: weakref.WeakKeyDictionary[Any, _Iterator | None] = (
            weakref.WeakKeyDictionary()
        )

    def add(self, loader: Any, iterator: Any) -> None:
        """The script begins to iterate over a loader."""
        size = _batch_size(loader)
        self._iterators[iterator] = None if size is None else _Iterator(size, _short_batch(loader))

    def take(self, window: OptimizerWindow) -> tuple[int, int] | None:
        """Batches drawn since the optimizer's last step, and the samples in each.

        None if no loader, or more than one, yielded batches, or if one batch may be short.
        """
        sources, all_known = [], True
        for iterator, counts in self._iterators.items():
            if counts is None:
                all_known = False
                continue
            drawn, total = _take_drawn(iterator, counts, window)
            if drawn:
                sources.append((counts, drawn, total))
        if len(sources) != 1 or not all_known:
            return None
        counts, drawn, total = sources[0]
        return None if counts.short_batch == total else (drawn, counts.batch_size)


def _take_drawn(iterator: Any, counts: _Iterator, window: OptimizerWindow) -> tuple[int, int]:
    """Batches since the optimizer's last step, and in total; the next call counts from here."""
    total: int = iterator._num_yielded
    before = counts.counted.get(id(window), 0)
    counts.counted[id(window)] = total
    # Persistent workers restart the iterator's count at 0.
    return (total - before if total >= before else total), total


def _batch_size(loader: Any) -> int | None:
    """Samples in a batch; None if batches differ, or hold more than the samples of this rank."""
    sampler = loader.batch_sampler
    shards = 1
    if type(sampler).__name__ == "BatchSamplerShard":  # Accelerate's
        shards = sampler.num_processes if sampler.split_batches else 1
        sampler = sampler.batch_sampler
    if type(sampler) is not BatchSampler or type(loader).__name__ == "DataLoaderDispatcher":
        return None
    return sampler.batch_size // shards


def _short_batch(loader: Any) -> int | None:
    """The number of an epoch's last batch, unless it is dropped or the length is not known."""
    if loader.batch_sampler.drop_last or not hasattr(loader.dataset, "__len__"):
        return None
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # a sampler without end has no length
        return None
