"""The all-reduces of gradients that the script started, and has not waited for."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradledger.capture.async_copy import Deferred
from gradledger.capture.gradient_probe import copy_coordinates
from gradledger.capture.isolation import alive, is_abstract, local_part

if TYPE_CHECKING:
    from gradledger.capture.open_records import OpenMicroBatch
    from gradledger.capture.windows import OptimizerWindow

MOST_SUMS = 256  # all-reduces in one backward that are sampled: of more, nothing is concluded


class RunningWorks:
    """All-reduces that were started since the last backward began, and that nothing waited for yet.

    Of all threads: hooks in a backward may run in another one than the loop. No reference to a work
    or tensor is stored, only ids and addresses: gloo aborts at the end of the interpreter if a work
    is released late. One whose id is in use again was dropped.
    """

    def __init__(self) -> None:
        self._running: dict[int, list[range]] = {}  # memory of the tensors, by id of the work
        self._dropped: list[range] = []
        self.inside: OpenMicroBatch | None = None  # the backward whose all-reduces are sampled
        self._sampled: dict[int, tuple[OpenMicroBatch, weakref.ref[Any], Deferred]] = {}

    def begin(self, micro_batch: OpenMicroBatch) -> None:
        """A backward begins. The first of a window is sampled: the others do the same."""
        self.clear()
        first = any(not window.micro_batches for window in micro_batch.marked_windows)
        self.inside = micro_batch if first else None

    def sample_before(self, tensors: Any) -> Deferred | None:
        """An all-reduce of one tensor begins."""
        inside = self.inside
        if inside is None or inside.complete or not inside.alone:
            return None
        full = max(len(inside.sums), len(self._sampled)) >= MOST_SUMS
        if full or not isinstance(tensors, (list, tuple)) or len(tensors) != 1:
            return None
        return copy_coordinates(list(tensors))

    def sample(self, work: Any, tensors: Any, before: Deferred) -> None:
        """It has begun."""
        if work is not None and self.inside is not None:
            self._sampled[id(work)] = self.inside, weakref.ref(tensors[0]), before

    def add(self, work: Any, tensors: Any = ()) -> int:
        """A collective on ``tensors`` was started, or has ended: no ``work``. Returns elements."""
        listed = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        plain = [t for t in listed if isinstance(t, torch.Tensor) and not is_abstract(t)]
        if work is not None:
            self._dropped += self._running.pop(id(work), [])
            self._running[id(work)] = [_memory(tensor) for tensor in plain]
        return sum(tensor.numel() for tensor in plain)

    def waited(self, of: Any) -> None:
        """The script waits for a work, or learns in another way that it has ended.

        Or for all works of a process group, in its barrier. Of which group a work is, is not
        stored: after any barrier, nothing is known to run.
        """
        if isinstance(of, dist.ProcessGroup):
            self.clear()
        self._running.pop(id(of), None)

    def ended(self, of: Any) -> None:
        """The wait has ended: sample what was all-reduced, if the backward still runs."""
        inside, reference, before = self._sampled.pop(id(of), (None, None, None))
        if inside is None or reference is None or before is None or inside.complete:
            return
        after = copy_coordinates(alive([reference]))
        if after is not None:
            inside.sums.append((before, after))

    def clear(self) -> None:
        """A backward begins, or all have ended."""
        self._running.clear()
        self._dropped.clear()
        self._sampled.clear()

    def describe(self, window: OptimizerWindow, reduced: int) -> dict[str, float]:
        """The fields of a step, as shares of the gradients that it is about to apply.

        ``reduced``: the elements that were all-reduced after the last backward.
        """
        started = list(self._running.values())  # at once: another thread may start one
        running = [each for ranges in started for each in ranges] + self._dropped
        if not (running or reduced):
            return {}
        gradients = [p.grad for p in window.parameters() if p.grad is not None]
        total = sum(gradient.numel() for gradient in gradients)
        if not total:
            return {}
        local = [local_part(gradient) for gradient in gradients if running]
        inside = (g.numel() for g in local if any(g.data_ptr() in each for each in running))
        shares = {"reduced_share": reduced / total, "unwaited_share": sum(inside) / total}
        return {name: round(share, 4) for name, share in shares.items() if share}


def _memory(tensor: Any) -> range:
    begin = tensor.data_ptr()
    return range(begin, begin + max(1, tensor.numel() * tensor.element_size()))
