"""How many batches a script drew from its training DataLoader for a window, and how large they are.

A loss's target may be flat, and then does not say how many samples it holds; the loader does. Its
iterators count what they have given, so nothing is added to the way of a batch.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler

if TYPE_CHECKING:
    from gradledger.capture.windows import Track


@dataclass
class _Load:
    """One iterator of a loader; ``short`` is which of its batches may hold fewer samples."""

    batch_size: int
    short: int | None
    counted: dict[int, int] = field(default_factory=dict)  # by optimizer: batches given so far


class Loads:
    """The iterators over training data that are alive."""

    def __init__(self) -> None:
        self._loads: weakref.WeakKeyDictionary[Any, _Load | None] = weakref.WeakKeyDictionary()

    def begin(self, loader: Any, iterator: Any) -> None:
        """The script begins to iterate a loader."""
        size = _batch_size(loader)
        self._loads[iterator] = None if size is None else _Load(size, _short(loader))

    def drawn(self, track: Track) -> tuple[int, int] | None:
        """Batches given since the optimizer's last step, and the samples in each.

        None where no loader, or more than one, gave some, or where one may have been short.
        """
        found = [(load, *_since(i, load, track)) for i, load in self._loads.items() if load]
        gave = [(load, new, now) for load, new, now in found if new]
        if len(gave) != 1 or len(found) < len(self._loads):
            return None
        load, new, now = gave[0]
        return None if load.short == now else (new, load.batch_size)


def _since(iterator: Any, load: _Load, track: Track) -> tuple[int, int]:
    now: int = iterator._num_yielded
    before = load.counted.get(id(track), 0)
    load.counted[id(track)] = now
    return now - before if now >= before else now, now  # persistent workers begin again at 0


def _batch_size(loader: Any) -> int | None:
    """Samples in a batch; None where batches differ, or hold more than this rank's."""
    sampler = loader.batch_sampler
    shards = 1
    if type(sampler).__name__ == "BatchSamplerShard":  # Accelerate's
        shards = sampler.num_processes if sampler.split_batches else 1
        sampler = sampler.batch_sampler
    if type(sampler) is not BatchSampler or type(loader).__name__ == "DataLoaderDispatcher":
        return None
    return sampler.batch_size // shards


def _short(loader: Any) -> int | None:
    """The last batch of an epoch, unless it is dropped; of a stream, nobody knows which that is."""
    endless = not hasattr(loader.dataset, "__len__")
    return None if loader.batch_sampler.drop_last or endless else len(loader)
