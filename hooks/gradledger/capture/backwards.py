"""The outermost backwards that run now, and the thread that each runs for.

Several threads of a process may train at once. Reading ``.grad`` while another thread replaces or
frees it reads freed memory, even under the interpreter's lock: PyTorch releases that lock while it
destroys a tensor. So the hooks read a gradient only on the thread that trains with it. This module
finds that thread.

The autograd engine runs the hooks of a CUDA backward on threads of the engine. Inside a graph
task, such a thread counts as the thread that called ``backward``, as long as only one runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

from gradledger.capture.isolation import never_compile
from gradledger.capture.open_records import OpenMicroBatch


class Backwards:
    """Outermost backwards by thread. The caller holds the recorder's lock."""

    def __init__(self) -> None:
        self._running: dict[int, OpenMicroBatch] = {}
        self._ending: dict[int, OpenMicroBatch] = {}  # that have just ended
        self._graph_task: Callable[[], int] | None = getattr(
            torch._C, "_current_graph_task_id", None
        )
        self.count = 0  # outermost backwards that have begun
        self.overlapped = False  # whether two ever ran at the same time

    def begin(self, has_grad_tensors: bool) -> OpenMicroBatch:
        """An outermost backward begins on this thread."""
        self.count += 1
        micro_batch = OpenMicroBatch(
            self.count, thread=get_ident(), has_grad_tensors=has_grad_tensors
        )
        if self._running:
            self.overlapped = True
            micro_batch.alone = False
            for running in self._running.values():
                running.alone = False
        self.resume(micro_batch)
        return micro_batch

    def resume(self, micro_batch: OpenMicroBatch) -> None:
        """A backward begins, or the second part of a split one."""
        micro_batch.complete = False
        self._running[micro_batch.thread] = micro_batch

    def end(self, micro_batch: OpenMicroBatch) -> None:
        """The backward ended or raised; what is measured at its end follows."""
        if self._running.pop(micro_batch.thread, None) is not None:
            self._ending[micro_batch.thread] = micro_batch

    @never_compile
    def leave(self) -> None:
        """The backward that began on this thread is over, even if it was interrupted."""
        for backwards in (self._running, self._ending):
            micro_batch = backwards.pop(get_ident(), None)
            if micro_batch is not None:
                micro_batch.complete = True

    def clear(self) -> None:
        """The hooks are removed: forget the backwards that still run."""
        for micro_batch in (*self._running.values(), *self._ending.values()):
            micro_batch.complete = True
        self._running.clear()
        self._ending.clear()

    @never_compile
    def is_nested(self) -> bool:
        """Whether a backward that begins now is inside another one, as in reentrant
        checkpointing."""
        return get_ident() in self._running or self.in_graph_task()

    def current(self) -> OpenMicroBatch | None:
        """The backward that this code runs in; None outside of one, or if it is not certain."""
        return self._running.get(self.training_thread())

    def training_thread(self) -> int:
        """The thread that this code runs for: this one, or the one that called backward."""
        thread = get_ident()
        if self._running and thread not in self._running and self.in_graph_task():
            threads = list(self._running)
            return threads[0] if len(threads) == 1 else thread
        return thread

    @never_compile
    def in_graph_task(self) -> bool:
        """Whether this thread runs hooks or functions of a backward; False if PyTorch does not
        report it."""
        return self._graph_task is not None and self._graph_task() != -1


def is_alive(thread: int) -> bool:
    """Whether a thread with this identifier runs."""
    return thread in sys._current_frames()


def as_roots(tensors: Any) -> tuple[Any, ...]:
    """Tensors or graph edges (``torch.autograd.graph.GradientEdge``, itself a tuple)."""
    if isinstance(tensors, torch.Tensor) or hasattr(tensors, "output_nr"):
        return (tensors,)
    return tuple(tensors) if isinstance(tensors, (tuple, list)) else ()  # PyTorch will refuse it


@never_compile
def with_sequence(args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """The tensors of a call of ``backward``, and its arguments.

    An iterator becomes a tuple, because reading it consumes it.
    """
    tensors = args[0] if args else kwargs.get("tensors")
    if isinstance(tensors, (torch.Tensor, tuple, list)) or not hasattr(tensors, "__iter__"):
        return tensors, args, kwargs
    roots = tuple(tensors)
    if args:
        return roots, (roots, *args[1:]), kwargs
    return roots, args, {**kwargs, "tensors": roots}
