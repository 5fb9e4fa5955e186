"""Counts the batches that a script drew from its training DataLoader for a window.

The target of a loss may be flat, and then its shape does not show how many samples it holds. The
loader does. Its iterators count the batches that they have yielded, so no code runs per batch.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

if TYPE_CHECKING:
    from gradledger.capture.windows import OptimizerWindow

MOST_BEGUN = 64  # iterators that are remembered when they are gone
_SAMPLERS = (Sampler.__module__, DistributedSampler.__module__)
REPEATED = "_RepeatSampler"  # the class of the batch sampler of loaders that keep one iterator


@dataclass(eq=False)
class _Iterator:
    """One iterator of a loader."""

    loader: int  # its id
    length: int | None  # batches of an epoch; None: it is not known
    batch_size: int | None  # None: it is not known
    short_batch: int | None  # the number of the batch that may hold fewer samples
    counted: dict[int, int] = field(default_factory=dict)  # by optimizer: batches at its last step

    def may_yield(self, window: OptimizerWindow) -> bool:
        """Whether it had batches left at the optimizer's last step."""
        return self.length is None or self.counted.get(id(window), 0) < self.length


class DrawnBatches:
    """The iterators over training data that are alive."""

    def __init__(self) -> None:
        self._iterators: weakref.WeakKeyDictionary[Any, _Iterator] = weakref.WeakKeyDictionary()
        # the last ones that began: numbers, ids of the loaders
        self._begun: deque[tuple[int, int, weakref.ref[Any]]] = deque(maxlen=MOST_BEGUN)
        self._count = 0
        # iterators that had begun at the last step of each optimizer
        self._begun_before: weakref.WeakKeyDictionary[OptimizerWindow, int] = (
            weakref.WeakKeyDictionary()
        )
        # those that were alive then
        self._alive_before: weakref.WeakKeyDictionary[OptimizerWindow, list[_Iterator]] = (
            weakref.WeakKeyDictionary()
        )

    def add(self, loader: Any, iterator: Any) -> None:
        """The script begins to iterate over a loader."""
        size = _batch_size(loader)
        length, short_batch = (None, None) if size is None else _epoch(loader)
        self._iterators[iterator] = _Iterator(id(loader), length, size, short_batch)
        self._count += 1
        self._begun.append((self._count, id(loader), weakref.ref(iterator)))

    def take(self, window: OptimizerWindow) -> dict[str, Any]:
        """What a step records of the batches drawn since the optimizer's last step.

        Their number, if one loader yielded them, and the samples in each, if none of them may be
        short. If several did, the batches of each. An iterator that began since then and is gone
        has yielded one, as in ``next(iter(loader))``. How many an older one yielded in this window
        before it was gone, at the end of an epoch, is not known.
        """
        sources, all_known = [], True
        before, alive = self._alive_before.get(window, ()), list(self._iterators.values())
        remaining = set(map(id, alive))
        ended = [each for each in before if id(each) not in remaining and each.may_yield(window)]
        self._alive_before[window] = alive
        by_loader = self._of_iterators_gone(window)
        for iterator, counts in self._iterators.items():
            drawn, total = _take_drawn(iterator, counts, window)
            all_known = all_known and counts.batch_size is not None
            if drawn:
                sources.append((counts, drawn, total))
                by_loader[counts.loader] += drawn
        if ended:
            return _common_batch_size([*ended, *(counts for counts, *_ in sources)])
        if len(by_loader) > 1:
            return {"loader_batches": list(by_loader.values())}
        if len(sources) != 1 or not all_known:
            return {}
        counts, drawn, total = sources[0]
        short = counts.short_batch  # an iterator that repeats the data yields one in each epoch
        whole = short is None or total // short == (total - drawn) // short
        return {"batches": drawn, **({"batch_size": counts.batch_size} if whole else {})}

    def _of_iterators_gone(self, window: OptimizerWindow) -> Counter[int]:
        before = self._begun_before.get(window, 0)
        self._begun_before[window] = self._count
        begun = tuple(self._begun)  # another thread may begin to iterate meanwhile
        gone = (loader for n, loader, it in begun if n > before and it() is None)
        return Counter(gone)


def _take_drawn(iterator: Any, counts: _Iterator, window: OptimizerWindow) -> tuple[int, int]:
    """Batches since the optimizer's last step, and in total; the next call counts from here."""
    total: int = iterator._num_yielded
    before = counts.counted.get(id(window), 0)
    counts.counted[id(window)] = total
    # Persistent workers restart the iterator's count at 0.
    return (total - before if total >= before else total), total


def _batch_size(loader: Any) -> int | None:
    """Samples in a batch; None if batches differ, or hold more than the samples of this rank."""
    sampler, shards = _repeated(loader.batch_sampler), 1
    if type(sampler).__name__ == "BatchSamplerShard":  # Accelerate's
        shards = sampler.num_processes if sampler.split_batches else 1
        sampler = sampler.batch_sampler
    if type(sampler) is not BatchSampler or type(loader).__name__ == "DataLoaderDispatcher":
        return None
    return sampler.batch_size // shards


def _epoch(loader: Any) -> tuple[int | None, int | None]:
    """The batches of an epoch, and the number of the one that may hold fewer samples.

    A sampler of the script is asked for its length only where such a batch is possible: its length
    may be costly, or drawn.
    """
    batches = _repeated(loader.batch_sampler)
    is_known = batches is loader.batch_sampler and type(batches) is BatchSampler
    is_known = is_known and type(batches.sampler).__module__ in _SAMPLERS
    if batches.drop_last:
        return (_length(loader) if is_known else None), None
    length = _length(loader)
    is_even = is_known and length is not None and len(batches.sampler) % batches.batch_size == 0
    return length, None if is_even else length


def _length(loader: Any) -> int | None:
    """The batches of an epoch."""
    if not hasattr(loader.dataset, "__len__"):
        return None
    try:
        return len(loader) or None
    except (TypeError, NotImplementedError):  # a sampler without end has no length
        return None


def _common_batch_size(iterators: list[_Iterator]) -> dict[str, int]:
    """The samples in each batch of several iterators, unless some may be short."""
    sizes = {each.batch_size if each.short_batch is None else None for each in iterators}
    size = sizes.pop()
    return {"batch_size": size} if size is not None and not sizes else {}


def _repeated(sampler: Any) -> Any:
    """The batch sampler whose batches a sampler yields unchanged, again and again.

    Only that of YOLO's and timm's loaders is known to: another class may split them.
    """
    held = list(getattr(sampler, "__dict__", {}).values())
    repeats = type(sampler).__name__ == REPEATED and [type(each) for each in held] == [BatchSampler]
    return held[0] if repeats else sampler
