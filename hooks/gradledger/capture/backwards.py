"""The backwards that run now, and on which thread.

Several threads of a process may train at once. To read ``.grad`` while another thread replaces or
frees it is to read freed memory, the interpreter's lock notwithstanding: PyTorch gives the lock
away while it destroys a tensor. So the hooks look at a gradient only on the thread that trains
with it, and here is how they know that thread.

The autograd engine runs hooks of a CUDA backward on threads of its own. Inside a graph task, such
a thread counts as the one that called ``backward``, as long as only one backward runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident

import torch

from gradledger.capture.isolation import never_compile
from gradledger.capture.open_records import OpenMicroBatch


class Backwards:
    """Outermost backwards by thread. Its caller holds the recorder's lock."""

    def __init__(self) -> None:
        self._running: dict[int, OpenMicroBatch] = {}
        self._graph_task: Callable[[], int] | None = getattr(
            torch._C, "_current_graph_task_id", None
        )
        self.count = 0  # outermost backwards that have begun
        self.overlapped = False  # whether two ever ran at the same time

    def begin(self, lent: bool) -> OpenMicroBatch:
        """An outermost backward begins on this thread."""
        self.count += 1
        micro_batch = OpenMicroBatch(self.count, thread=get_ident(), lent=lent)
        if self._running:
            self.overlapped = True
            micro_batch.alone = False
            for other in self._running.values():
                other.alone = False
        self._running[micro_batch.thread] = micro_batch
        return micro_batch

    def end(self, micro_batch: OpenMicroBatch) -> None:
        """It has ended, or was abandoned."""
        self._running.pop(micro_batch.thread, None)

    @never_compile
    def leave(self) -> None:
        """No backward that began on this thread runs any more, whatever became of it."""
        self._running.pop(get_ident(), None)

    def clear(self) -> None:
        """No backward is watched any more."""
        self._running.clear()

    @never_compile
    def nested(self) -> bool:
        """Whether a backward that begins now begins inside another one, as under reentrant
        checkpointing."""
        return get_ident() in self._running or self.in_graph_task()

    def here(self) -> OpenMicroBatch | None:
        """The backward that this code runs in; None outside, and where that cannot be known."""
        return self._running.get(self.thread())

    def thread(self) -> int:
        """The thread that this code runs for."""
        here = get_ident()
        if self._running and here not in self._running and self.in_graph_task():
            threads = list(self._running)
            return threads[0] if len(threads) == 1 else here
        return here

    @never_compile
    def in_graph_task(self) -> bool:
        """Whether this thread runs hooks or functions of a backward, as far as PyTorch says."""
        return self._graph_task is not None and self._graph_task() != -1


def is_alive(thread: int) -> bool:
    """Whether a thread of this identifier runs."""
    return thread in sys._current_frames()
