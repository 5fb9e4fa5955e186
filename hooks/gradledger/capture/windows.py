"""Assigns micro-batches and calls of the loop to the windows of the optimizers.

A backward belongs to the window of every optimizer whose gradients it added to. Version marks
detect this without reading a value. The mark of a gradient is the pair of its tensor's ``id`` and
``_version``; ``(0, 0)`` if it is absent. A few parameters of each optimizer are probed, and their
marks are read before and after every outermost backward.

What marks prove:

- Marks that change between the begin and the end of a backward: it added to a probed gradient. A
  first gradient is a new tensor, and adding in place increments the version.
- Equal marks at the end of one backward and the begin of the next: no operation of PyTorch wrote
  to the gradients in between, so they accumulate.
- All marks absent at the begin: the gradients are fresh (``zero_grad(set_to_none=True)``).

What marks cannot prove:

- What changed a gradient, or by how much. Zeroing in place, unscaling and clipping all increment
  the version. If marks differ at the begin of a backward, a sample of the values is taken, and it
  decides later whether they are zero: ``fresh`` is None until then.
- That nothing wrote past the version counter, for example through ``.grad.data``, or that a new
  tensor did not get the ``id`` of one that was freed.
- Anything about parameters that are not probed.

FSDP2 adds to the shard inside a DTensor, whose own version does not change. Without FSDP2, it is
the DTensor's version that changes, and not that of its shard. The mark holds their sum. Gradients
that FSDP accumulates outside ``.grad`` have no marks; the observer of collectives reports their
parameters (``hidden_parameters``).

Gradients are read only on the thread that trains with them (see ``backwards``). A window has no
thread until a backward is observed to reach it, or its optimizer steps. Until then it is read only
while no other thread runs a backward. Optimizers that several threads use at the same time cannot
be observed, and their records state this reason.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Set
from typing import Any

from gradledger.capture.async_copy import Deferred
from gradledger.capture.backwards import Backwards, is_alive
from gradledger.capture.code.call_sites import CalledFrom
from gradledger.capture.gradient_probe import ABSENT, GradientProbe, copy_coordinates, spread
from gradledger.capture.isolation import (
    alive,
    has_readable_grad,
    is_abstract,
    local_part,
    version_of,
)
from gradledger.capture.left_open import AGAIN, is_abandoned, note_awaited, unfinished_steps
from gradledger.capture.open_parts import DroppedOptimizer, OpenEvent, Schedule, count_applied
from gradledger.capture.open_records import CountedMicroBatch, OpenMicroBatch, OpenStep
from gradledger.capture.open_terms import note_step
from gradledger.capture.replica_sample import OpenModels
from gradledger.records import CodeRole, Op

MAX_DOUBTFUL_STEPS = 2  # steps of one optimizer that are left out without a record
SHARED = "several threads train with this optimizer, or with its parameters, at the same time"
STRAY = "backwards ran in threads other than the one that steps this optimizer"
WANDERING = "different threads step this optimizer in turn"
UNREADABLE = "its parameters are tensor subclasses or no leaves: their gradients are not read"
# Limits of memory, for a loop that never steps.
MAX_OPEN_MICRO_BATCHES = 4096
MAX_OPEN_EVENTS = 512


class OptimizerWindow:
    """One optimizer with its open window: from its last step to the next one."""

    FEW = AGAIN  # for ``_release``, which must find it when modules are gone

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer, self._release)
        self.name = type(optimizer).__name__
        self.index: int | None = None  # assigned at the first step, the same on every rank
        self.steps = 0
        self.closed_as = 0  # the number of its latest step among those of all optimizers
        self.alone = True  # no other one has stepped between two of its steps
        self.stepped_on: frozenset[int] = frozenset()  # the backwards of that step, by number
        self.micro_batches: list[CountedMicroBatch] = []
        self.events: list[OpenEvent] = []
        self.probe = GradientProbe()
        self.thread: int | None = None  # the one that trains with it
        self.shared = False  # several threads train with it
        self.doubtful_steps = 0  # steps whose gradients may come from several threads
        self._probed: list[weakref.ref[Any]] = []
        self.sample_at_last_step: Deferred | None = None
        self.fresh: bool | None = True  # of the last backward's begin: see CountedMicroBatch
        self.sample_before: Deferred | None = None
        self.stepping = False  # inside step(closure): the window closes when it returns
        self.applying = False  # inside step(): the window is closed, and the next one is open
        self.inner = False  # another optimizer steps it inside its own step: ZeRO's share
        self.groups = len(getattr(optimizer, "param_groups", ()))
        self.buffers: frozenset[int] = frozenset()  # its own buffers that have stepped, by id
        self.in_parts = False  # it steps them in several calls
        self.continued = False  # this call is not the first of them
        self.calls = 0  # of its step that have begun and not ended
        self.outer_calls = 0  # of these, which only contain the one that updates the parameters
        self.may_idle: bool | None = None  # its step may leave the parameters as they are
        self.versions_at_step: list[int] = []  # of the probed parameters, if so
        self.hidden_gradients = False  # gradients of the last backward are outside ``.grad``
        self.counted_number = 0  # of the micro-batch that was counted while it still ran
        self.largest = 0  # micro-batches of a step since the gradients were zeroed
        self.versions: list[int] = []  # of the probed parameters, when the last backward had ended
        self.initial: Deferred | None = None  # their values, of the first window
        self.partial = False  # the start of the window was not observed: no record of it
        self.by_hand = False  # no optimizer of PyTorch holds its parameters
        self.fed = False  # a backward has added to its gradients
        self.starved = False  # it steps on gradients, and no backward has added to them
        self.sources: list[CountedMicroBatch] = []  # micro-batches that may have made these
        self.strays = 0  # at the last step: see ``OpenWindows._strays``
        self.schedule: Schedule | None = None
        self.rate: float | None = None  # of the first group, when the last backward had ended
        self.rate_moves = 0  # since the window began
        self.resumed = 0  # steps that it had made, if its state was loaded without its schedule's
        self.code = CalledFrom()
        self.marks: list[tuple[int, int]] = []

    @property
    def optimizer(self) -> Any:
        """The optimizer, or None if the script has dropped it."""
        return self._optimizer()

    def parameters(self) -> list[Any]:
        """All parameters of the optimizer."""
        groups = getattr(self.optimizer, "param_groups", ())
        return [p for group in groups for p in group["params"]]

    def parameter_count(self) -> int:
        """How many these are."""
        return sum(len(group["params"]) for group in getattr(self.optimizer, "param_groups", ()))

    @property
    def probed_parameters(self) -> list[Any]:
        """The parameters whose gradients are read, without those that the script has dropped."""
        return alive(self._probed)

    def choose_probed(self, parameters: list[Any], reached: bool = False) -> None:
        """Choose from parameters of the optimizer; ``reached``: from those that have a gradient, if
        some have. Repeated at each backward until one can be read."""
        readable = [p for p in parameters if p.requires_grad and has_readable_grad(p)]
        if reached:
            readable = [p for p in readable if p.grad is not None] or self.probed_parameters
        self._probed = list(map(weakref.ref, spread(readable)))

    def is_abstract(self) -> bool:
        """Whether no parameter has values: a dry run on fake or meta tensors."""
        parameters = [] if self._probed else self.parameters()
        return bool(parameters) and all(is_abstract(local_part(p)) for p in parameters)

    def is_unreadable(self) -> bool:
        """Whether the optimizer has parameters, and none that can be read."""
        parameters = [] if self._probed else self.parameters()
        return bool(parameters) and not any(map(has_readable_grad, parameters))

    def _release(self, _: Any) -> None:
        """The script has dropped the optimizer: drop every reference to the script's objects.

        Except for what the window counts if it may be left open: a function that trains drops its
        optimizer where it returns. Reads no global name: the interpreter may be ending.
        """
        if not self.steps or len(self.micro_batches) <= self.FEW:
            self.micro_batches, self.events = [], []
        self._probed, self.sources = [], []
        self.sample_at_last_step = self.sample_before = self.initial = None
        self.probe.release()

    # ------------------------------------------------------------------ one backward

    def begin_backward(self) -> None:
        """Read the marks, and derive from them whether the gradients are fresh."""
        self.applying = False  # it may have raised
        self.calls = self.calls if self.stepping else 0
        if not self._probed:
            self.choose_probed(self.parameters())
        marks = self.read_marks()
        self.fresh, self.sample_before = False, None
        if self.hidden_gradients:
            pass  # the marks mean nothing: the gradients are outside ``.grad``
        elif marks.count(ABSENT) == len(marks):
            self.fresh = True
            self.probe.release()
            self.probe.begin_without(self.probed_parameters)
        elif marks != self.marks or not self.micro_batches:
            # Something wrote to the gradients: the values decide. The first backward of a window
            # finds the gradients of the last one only if they were cleared past their version, by
            # ``.grad.data.zero_()``, or not at all. A resume may restore those of the first window.
            self.fresh, self.sample_before = None, self.sample() if self.fed else None
        self.marks = marks

    def end_backward(self, hidden: Set[int] = frozenset()) -> bool:
        """Read the marks again; True if the backward added to gradients of this optimizer.

        ``hidden`` are parameters whose gradients FSDP keeps outside ``.grad`` until it reduces
        them.
        """
        self.probe.find_moved(self.probed_parameters)
        marks_at_begin, self.marks = self.marks, self.read_marks()
        unseen = not (hidden or self.fed or self.steps)
        if unseen and self.marks.count(ABSENT) == len(self.marks):
            self.choose_probed(self.parameters(), reached=True)  # a loss may use few of them
            self.marks = self.read_marks()
        hides = bool(hidden) and any(id(p) in hidden for p in self.probed_parameters)
        changed = self.marks != marks_at_begin
        if hides or changed:  # else it was the backward of other parameters
            self.hidden_gradients = hides
        return (changed and self.marks.count(ABSENT) < len(self.marks)) or hides

    def read_marks(self) -> list[tuple[int, int]]:
        """The marks of the probed gradients now."""
        return self.probe.marks(self.probed_parameters)

    def read_versions(self) -> list[int]:
        """The versions of the probed parameters now."""
        return list(map(version_of, self.probed_parameters))

    def sample(self) -> Deferred | None:
        """A few coordinates of the current gradients."""
        return self.probe.copy(self.probed_parameters)

    def add_micro_batch(self, micro_batch: OpenMicroBatch, runs: bool = False) -> None:
        """Count a micro-batch in the open window; ``runs``: its backward has not ended."""
        self.fed, self.starved = True, False
        if not self.micro_batches:
            self.initial = None if self.steps else copy_coordinates(self.probed_parameters)
        before, self.versions = self.versions, self.read_versions()
        if len(self.micro_batches) < MAX_OPEN_MICRO_BATCHES:
            counted = CountedMicroBatch(micro_batch, self.fresh, self.sample_before, id(self))
            moved = sum(a != b for a, b in zip(before, self.versions, strict=False))
            # ``nn.Embedding(max_norm=...)`` changes one in its forward
            counted.changed = bool(self.micro_batches) and 2 * moved > len(self.versions)
            self.micro_batches.append(counted)
            role: CodeRole = "backward" if micro_batch.scale is None else "scaled_backward"
            counted.call = self.code.locate_backward(role, self.steps, runs)

    def add_source(self, counted: CountedMicroBatch) -> None:
        """Note a micro-batch whose gradients the loop may copy to those of the optimizer."""
        if len(self.sources) < MAX_OPEN_MICRO_BATCHES:
            self.sources.append(counted)
            counted.call = self.code.locate_backward("backward", self.steps, False)

    def add_event(self, event: OpenEvent) -> None:
        """Note a call of the loop in the open window."""
        if len(self.events) < MAX_OPEN_EVENTS:
            event.after = len(self.micro_batches)
            self.events.append(event)
            if event.own:
                self.code.locate(event.op, self.steps)

    def discard(self) -> None:
        """Empty the window: after a pause its contents are incomplete, the last step unknown."""
        self.micro_batches, self.events, self.sources = [], [], []
        self.sample_at_last_step, self.rate_moves = None, 0

    def is_unassigned(self) -> bool:
        """Whether it has no thread, or one that has ended."""
        return self.thread is None or not is_alive(self.thread)

    # ------------------------------------------------------------------ the step

    def close(self, index: int, time: float) -> OpenStep:
        """Take the contents of the window, and open the next one."""
        if not self.by_hand:
            self.code.locate_step(self.steps, [each.call for each in self.micro_batches])
        self.steps += 1
        self.largest = max(self.largest, count_applied(self.micro_batches))
        adopted = bool(self.sources) and not self.micro_batches
        if adopted:
            self.micro_batches = self.sources
            for event in self.events:
                event.after = len(self.sources)
        step = OpenStep(index, self.steps, time, self.micro_batches, self.events)
        assigned = len(self.micro_batches) > 1 and getattr(self.optimizer, "assigned", False)
        step.sample_at_last_step, step.adopted = self.sample_at_last_step, adopted or assigned
        for counted in self.micro_batches:
            stepped_by = counted.micro_batch.stepped_by
            counted.already_stepped = any(other != index for other in stepped_by)
            stepped_by[index] = len(self.micro_batches) == 1
        self.micro_batches, self.events, self.sources = [], [], []
        self.hidden_gradients = False
        return step


class OpenWindows:
    """The windows of all optimizers of this process. The caller holds the recorder's lock."""

    def __init__(self, backwards: Backwards | None = None) -> None:
        self.skipping = False  # steps are skipped: nothing is observed
        self.several_threads = False  # more than one thread trains
        self._backwards = backwards or Backwards()
        self._by_optimizer: dict[int, OptimizerWindow] = {}
        self._numbered: list[OptimizerWindow | DroppedOptimizer] = []
        # parameters that the optimizers held at their first steps, by id
        self._trained = weakref.WeakValueDictionary[int, Any]()
        self.closed = 0  # steps of all optimizers that were observed
        self._strays: dict[int, int] = {}  # by thread: backwards that reached no optimizer

    def __iter__(self) -> Iterator[OptimizerWindow]:
        return iter(list(self._by_optimizer.values()))

    @property
    def names(self) -> list[str]:
        """Class names of the optimizers that have stepped, by index."""
        return [window.name for window in self._numbered]

    @property
    def steps(self) -> list[int]:
        """Steps taken, by index."""
        return [window.steps for window in self._numbered]

    def window_of(self, optimizer: Any) -> OptimizerWindow:
        """The window of an optimizer, created on first use.

        An optimizer that first appears on a thread other than the main one is assigned to it.
        """
        window = self._by_optimizer.get(id(optimizer))
        if window is None or window.optimizer is not optimizer:
            self._remove_dropped()
            window = self._by_optimizer[id(optimizer)] = OptimizerWindow(optimizer)
            window.begin_backward()
            thread = self._backwards.training_thread()
            if thread != threading.main_thread().ident:
                self._assign_thread(window, thread)
        return window

    def index_of(self, window: OptimizerWindow) -> int:
        """The optimizer's index, assigned in the order of first steps."""
        if window.index is None:
            window.index = len(self._numbered)
            self._numbered.append(window)
        return window.index

    def add_event(self, op: Op, optimizer: Any = None, scaler: int = 1) -> None:
        """Note a call of the loop in every open window of this thread.

        ``optimizer`` is the one that the call was made on; None if it concerns all of them.
        """
        for window in () if self.skipping else self.of_this_thread():
            own = optimizer is None or window.optimizer is optimizer
            window.add_event(OpenEvent(op, 0, own=own, scaler=scaler))

    def add_own_event(self, op: Op, optimizer: Any) -> None:
        """Note a call in the window of its optimizer alone."""
        for window in () if self.skipping else self.of_this_thread():
            if window.optimizer is optimizer:
                window.add_event(OpenEvent(op, 0))

    def close(self, window: OptimizerWindow, now: float) -> OpenStep:
        """Close a window with a step of its optimizer."""
        if not window.steps:
            self._trained.update((id(p), p) for p in window.parameters())
        window.alone &= window.closed_as in (0, self.closed)
        self.closed = window.closed_as = self.closed + 1
        note_step(window, self.index_of(window), self)
        note_awaited(window, self)
        step = window.close(self.index_of(window), now)
        if window.alone:
            step.fields["alone"] = True
        return step

    def abandoned(self) -> list[OptimizerWindow]:
        """At the end of the process: windows that a guard abandoned."""
        windows = [window for window in self.of_this_thread() if is_abandoned(window)]
        for window in windows:
            window.code.stop()  # the script does not step here
        return windows

    def left_open(
        self, now: float, facts: tuple[str, ...], models_of: Callable[[Any], OpenModels | None]
    ) -> Iterator[tuple[OpenStep, OptimizerWindow]]:
        """At the end of the process: the records of what no step closed, or is not finished."""
        return unfinished_steps(self, now, facts, models_of)

    @property
    def stepped(self) -> list[OptimizerWindow | DroppedOptimizer]:
        """The optimizers that have stepped, also those that the script has dropped."""
        return [each for each in self._numbered if each.steps]

    def has_trained(self, parameters: list[Any]) -> bool:
        """Whether an optimizer that has stepped holds one of them, or one that was dropped did."""
        held = set(self._trained).union(*(map(id, w.parameters()) for w in self if w.steps))
        return not held.isdisjoint(map(id, parameters))

    def discard_open(self) -> None:
        """Empty all open windows: after a pause of the hooks their contents are incomplete."""
        readable = self.of_this_thread()
        for window in self:
            window.discard()
            if window in readable:
                window.begin_backward()
            else:
                window.partial = True

    # ------------------------------------------------------------------ threads

    def of_this_thread(self) -> list[OptimizerWindow]:
        """The windows that this thread may read: its own and unassigned ones."""
        thread = self._backwards.training_thread()
        readable = [w for w in self if not (w.shared or w.inner)]
        return [w for w in readable if w.thread == thread or w.is_unassigned()]

    def is_inner(self, window: OptimizerWindow) -> bool:
        """Whether its optimizer steps as a part of another one's step, over the same parameters.

        Then the other's window stands for both: ``ZeroRedundancyOptimizer`` steps an optimizer of
        this rank's share of the parameters.
        """
        outer = [w for w in self if w.applying and w is not window]
        if outer and not window.inner:
            own = set(map(id, window.parameters()))
            window.inner = any(own <= set(map(id, w.parameters())) for w in outer)
            if window.inner:
                window.discard()
        return window.inner

    def begin_backward(self, micro_batch: OpenMicroBatch) -> None:
        """Read the marks of the windows that the backward may reach."""
        for window in self.of_this_thread():
            if window.thread == micro_batch.thread or micro_batch.alone:
                window.begin_backward()
                micro_batch.marked_windows.append(window)
            else:
                window.partial = True  # its thread is not known yet

    def end_backward(self, micro_batch: OpenMicroBatch) -> list[OptimizerWindow]:
        """Count the micro-batch in the windows whose gradients it added to; returns them."""
        reached = []
        for window in micro_batch.marked_windows:
            if window.shared or window.thread not in (None, micro_batch.thread):
                if not window.is_unassigned():
                    continue  # another thread has stepped it since the backward began
            elif window.thread is None and not micro_batch.alone:
                window.partial = True
                continue
            if window.counted_number == micro_batch.number:
                continue  # its optimizer stepped from a hook inside this backward
            if window.end_backward(micro_batch.hidden_parameters):
                self._assign_thread(window, micro_batch.thread)
                window.add_micro_batch(micro_batch)
                reached.append(window)
        micro_batch.marked_windows.clear()
        if not reached:
            self._strays[micro_batch.thread] = self._strays.get(micro_batch.thread, 0) + 1
        return reached

    def prepare_step(self, window: OptimizerWindow) -> str | None:
        """The optimizer steps on this thread. Returns the reason if its window is not measurable.

        When threads begin to train, it takes a few steps to observe which thread trains which
        optimizer. The first few doubtful windows are left out, and the records of later ones state
        the doubt. All doubtful steps count, not only consecutive ones: otherwise a loop that often
        changes its thread would be evaluated as if those steps did not exist.
        """
        thread = self._backwards.training_thread()
        strays, strays_before = self._strays_of_others(thread), window.strays
        window.strays = strays
        doubt = STRAY if strays != strays_before else None
        if window.thread != thread:
            if not window.is_unassigned():
                window.shared = window.shared or self._backwards.overlapped
                doubt = WANDERING
            self._assign_thread(window, thread)
        if window.shared:
            return SHARED
        if window.is_unreadable():
            return UNREADABLE
        window.doubtful_steps += doubt is not None
        window.partial = window.partial or doubt is not None
        return doubt if window.doubtful_steps > MAX_DOUBTFUL_STEPS else None

    def _strays_of_others(self, thread: int) -> int:
        """How many backwards of other threads have reached no optimizer."""
        return sum(count for other, count in self._strays.items() if other != thread)

    def _assign_thread(self, window: OptimizerWindow, thread: int) -> None:
        if window.thread == thread:
            return
        window.thread = thread
        others = [
            w for w in self if w is not window and w.thread != thread and not w.is_unassigned()
        ]
        if not others:
            return
        self.several_threads = True
        parameters = set(map(id, window.parameters()))
        for other in others:
            if not parameters.isdisjoint(map(id, other.parameters())):
                window.shared = other.shared = True

    def _remove_dropped(self) -> None:
        for key, window in list(self._by_optimizer.items()):
            if window.optimizer is None:
                del self._by_optimizer[key]
                if window.index is not None:
                    self._numbered[window.index] = DroppedOptimizer(window.name, window.steps)
