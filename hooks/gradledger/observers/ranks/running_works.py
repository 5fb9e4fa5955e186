"""The all-reduces of gradients that the script started, and has not waited for."""

from __future__ import annotations

import inspect
import sys
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from gradledger.capture.async_copy import Deferred
from gradledger.capture.gradient_probe import copy_coordinates
from gradledger.capture.isolation import alive, is_abstract, local_part
from gradledger.capture.open_parts import Summed

if TYPE_CHECKING:
    from gradledger.capture.open_records import OpenMicroBatch
    from gradledger.capture.windows import OptimizerWindow

_current_node: Any = getattr(torch._C, "_current_autograd_node", None)

MOST_SUMS = 256  # all-reduces in one backward that are sampled: of more, nothing is concluded


class _Sampled(NamedTuple):
    """An all-reduce that was started inside a backward."""

    inside: OpenMicroBatch
    tensor: weakref.ref[Any]
    before: Deferred
    passed: list[Deferred]
    divisor: int
    both_ways: bool  # by a function that has combined ranks in its forward, too


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
        self._sampled: dict[int, _Sampled] = {}
        # Ids of the code that has called an all-reduce outside backward. One that is used again
        # only leaves a factor unknown.
        self._callers: set[int] = set()
        # Of autograd functions that run: the id, how much was all-reduced, and what they pass on.
        self.in_functions: list[tuple[int, int, list[Deferred]]] = []

    def begin(self, micro_batch: OpenMicroBatch) -> None:
        """A backward begins. The first of a window is sampled: the others do the same."""
        self.clear()
        first = any(not window.micro_batches for window in micro_batch.marked_windows)
        self.inside = micro_batch if first else None

    def sample_before(self, tensors: Any) -> Deferred | None:
        """An all-reduce of one tensor begins."""
        inside = self.inside
        if inside is None or inside.complete or not inside.alone:
            self._note_callers()
            return None
        full = max(len(inside.sums), len(self._sampled)) >= MOST_SUMS
        if full or not isinstance(tensors, (list, tuple)) or len(tensors) != 1:
            return None
        return copy_coordinates(list(tensors))

    def sample(self, work: Any, tensors: Any, before: Deferred, divisor: int) -> bool:
        """It has begun. Returns whether an autograd function of the script runs it."""
        inside = self.inside
        if work is None or inside is None:
            return False
        passed: list[Deferred] = []
        node = _current_node() if _current_node is not None else None
        runs = isinstance(node, torch.autograd.function.BackwardCFunction)
        if runs:
            self.in_functions.append((id(node), tensors[0].numel(), passed))
        reference = weakref.ref(tensors[0])
        both = runs and self._is_caller(node)
        self._sampled[id(work)] = _Sampled(inside, reference, before, passed, divisor, both)
        return runs

    def _note_callers(self) -> None:
        """What calls an all-reduce outside backward, such as the forward of a function."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            self._callers.add(id(frame.f_code))
            frame = frame.f_back

    def _is_caller(self, node: Any) -> bool:
        forward: Any = getattr(getattr(node, "_forward_cls", None), "forward", None)
        return id(getattr(inspect.unwrap(forward), "__code__", None)) in self._callers

    def function_ends(self, node: Any, passed_on: Any) -> None:
        """What it passes on, if that has as many values as it has all-reduced."""
        listed = passed_on if isinstance(passed_on, tuple) else (passed_on,)
        gradients = [each for each in listed if isinstance(each, torch.Tensor)]
        ended = [each for each in self.in_functions if each[0] == id(node)]
        self.in_functions = [each for each in self.in_functions if each[0] != id(node)]
        for _, size, passed in ended:
            alike = [gradient for gradient in gradients if gradient.numel() == size]
            values = copy_coordinates(alike) if len(alike) == 1 else None
            if values is not None:
                passed.append(values)

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
        sampled = self._sampled.pop(id(of), None)
        if sampled is None or sampled.inside.complete:
            return
        after = copy_coordinates(alive([sampled.tensor]))
        if after is not None:
            _, _, before, passed, divisor, both_ways = sampled
            summed = Summed(before, after, passed, divisor, both_ways)
            sampled.inside.sums.append(summed)

    def clear(self) -> None:
        """A backward begins, or all have ended."""
        self._running.clear()
        self._dropped.clear()
        self._sampled.clear()
        self.in_functions.clear()

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


def divisor_of(group: Any, *options: Any) -> int:
    """What an all-reduce divides the sum by: the number of ranks, if it averages.

    ``options``: its arguments but the tensors; the operation is one of them, or a part of one.
    """
    read = (getattr(each, "reduceOp", each) for each in options)
    operations: list[Any] = [each for each in read if isinstance(each, dist.ReduceOp)]
    return int(group.size()) if dist.ReduceOp.AVG in operations else 1


def _memory(tensor: Any) -> range:
    begin = tensor.data_ptr()
    return range(begin, begin + max(1, tensor.numel() * tensor.element_size()))
