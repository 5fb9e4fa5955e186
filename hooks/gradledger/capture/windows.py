"""Which micro-batches and calls belong to which optimizer's window.

A backward belongs to the window of every optimizer whose gradients it added to. That is read from
a few of the optimizer's parameters without touching a value: adding to a gradient in place moves
the tensor's version, and a first gradient is a new tensor. FSDP2 adds to the shard inside a
DTensor, whose own version stays.

Gradients are looked at only on the thread that trains with them (see ``backwards``). A track has
no thread until a backward is seen to reach it, or its optimizer steps. While it has none, it is
looked at only where no other thread runs a backward. Optimizers that several threads use at once
cannot be observed: their records say so.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Set
from typing import Any

import torch

from gradledger.capture.async_copy import Deferred
from gradledger.capture.backwards import Backwards, is_alive
from gradledger.capture.gradient_probe import Coordinates
from gradledger.capture.isolation import is_abstract, is_plain, local_part
from gradledger.capture.open_records import Counted, OpenEvent, OpenMicroBatch, OpenStep

WATCHED_PARAMETERS = 4
FEW_DOUBTS = 2  # steps of an optimizer that are left out without a record
SHARED = "several threads train with this optimizer, or with its parameters, at the same time"
STRAY = "backwards ran in threads other than the one that steps this optimizer"
WANDERING = "different threads step this optimizer in turn"
UNREADABLE = "its parameters are tensor subclasses or no leaves: their gradients are not read"
ABSENT = (0, 0)
# What torch.utils.weak.TensorWeakRef calls when it gives out its tensor.
_fix_weakref: Any = getattr(torch.Tensor, "_fix_weakref", None)
# A loop that never steps must not fill the memory.
MAX_OPEN_MICRO_BATCHES = 4096
MAX_OPEN_EVENTS = 512


class Track:
    """One optimizer and its open window."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer, self._dropped)
        self.name = type(optimizer).__name__
        self.index: int | None = None  # given at the first step, the same on every rank
        self.steps = 0
        self.micro_batches: list[Counted] = []
        self.events: list[OpenEvent] = []
        self.coordinates = Coordinates()
        self.thread: int | None = None  # that trains with it
        self.shared = False  # several threads do
        self.doubts = 0  # steps whose gradients may be of several threads
        self._watched: list[weakref.ref[Any]] = []
        self.sample_at_last_step: Deferred | None = None
        self.fresh: bool | None = True  # gradients absent or zero when the last backward began
        self.before: Deferred | None = None  # sampled then, where that was not yet known
        self.stepping = False  # inside step(closure): the window closes when it returns
        self.unseen = False  # gradients of the last backward are kept out of ``.grad``
        self.counted = 0  # number of the micro-batch that was counted while it still ran
        self.partial = False  # nobody looked while the window began
        self.strays = 0  # backwards of other threads that had reached no optimizer at the last step
        self._marks: list[tuple[int, int]] = []

    @property
    def optimizer(self) -> Any:
        """The optimizer, or None when the script has dropped it."""
        return self._optimizer()

    def parameters(self) -> list[Any]:
        """All parameters of the optimizer."""
        groups = getattr(self.optimizer, "param_groups", ())
        return [p for group in groups for p in group["params"]]

    @property
    def watched(self) -> list[Any]:
        """The parameters that are looked at, as far as the script still has them."""
        parameters = [p for p in (watch() for watch in self._watched) if p is not None]
        if _fix_weakref is not None:
            for parameter in parameters:
                _fix_weakref(parameter)
        return parameters

    def _watch(self) -> None:
        """Choose what to look at; again as long as there is nothing that can be read."""
        readable = [p for p in self.parameters() if p.requires_grad and _has_readable_grad(p)]
        self._watched = list(map(weakref.ref, _spread(readable)))

    def is_abstract(self) -> bool:
        """Whether its parameters have no numbers at all: a dry run on fake or meta tensors."""
        parameters = [] if self._watched else self.parameters()
        return bool(parameters) and all(is_abstract(local_part(p)) for p in parameters)

    def is_unreadable(self) -> bool:
        """Whether the optimizer has parameters, and none that can be read."""
        parameters = [] if self._watched else self.parameters()
        return bool(parameters) and not any(map(_has_readable_grad, parameters))

    def _dropped(self, _: Any) -> None:
        """The script has dropped the optimizer: let go of all that was the script's."""
        self._watched, self.micro_batches, self.events = [], [], []
        self.sample_at_last_step = self.before = None
        self.coordinates.release()

    # ------------------------------------------------------------------ a backward comes and goes

    def begin(self) -> None:
        """A backward is about to start: what are the gradients now, and who changed them?"""
        if not self._watched:
            self._watch()
        marks = self._look()
        self.fresh, self.before = False, None
        if self.unseen:
            pass
        elif marks.count(ABSENT) == len(marks):
            self.fresh = True
            self.coordinates.release()
        elif marks != self._marks:
            self.fresh, self.before = None, self.sample()
        self._marks = marks

    def touched(self, unseen: Set[int] = frozenset()) -> bool:
        """Whether gradients were added since the backward began; remembers them as they are.

        ``unseen`` are parameters whose gradients FSDP keeps elsewhere until it reduces them.
        """
        began, self._marks = self._marks, self._look()
        self.unseen = bool(unseen) and any(id(p) in unseen for p in self.watched)
        added = self._marks != began and self._marks.count(ABSENT) < len(self._marks)
        return added or self.unseen

    def _look(self) -> list[tuple[int, int]]:
        gradients = [p.grad for p in self.watched]
        return [ABSENT if g is None else (id(g), local_part(g)._version) for g in gradients]

    def sample(self) -> Deferred | None:
        """A few coordinates of the gradients as they are now."""
        return self.coordinates.copy(self.watched)

    def add(self, micro_batch: OpenMicroBatch) -> None:
        """The micro-batch belongs to the open window."""
        if len(self.micro_batches) < MAX_OPEN_MICRO_BATCHES:
            self.micro_batches.append(Counted(micro_batch, self.fresh, self.before))

    def note(self, event: OpenEvent) -> None:
        """A call of the loop belongs to the open window."""
        if len(self.events) < MAX_OPEN_EVENTS:
            event.after = len(self.micro_batches)
            self.events.append(event)

    def dropped(self) -> bool:
        """Whether scaled gradients of the open window were zeroed after a look at their norm."""
        looked = any(event.op == "clip_norm" for event in self.events)
        again = any(counted.fresh for counted in self.micro_batches[1:])
        scaled = any(counted.micro_batch.scale is not None for counted in self.micro_batches)
        return looked and again and scaled and self.optimizer is not None

    def forget(self) -> None:
        """Nobody looked for a while: what is open is a part, and the last step is not known."""
        self.micro_batches, self.events = [], []
        self.sample_at_last_step = None

    def is_free(self) -> bool:
        """Whether no thread trains with it, or one that has ended."""
        return self.thread is None or not is_alive(self.thread)

    # ------------------------------------------------------------------ the window closes

    def close(self, index: int, time: float) -> OpenStep:
        """Take what the window holds and open the next one."""
        self.steps += 1
        step = OpenStep(index, self.steps, time, self.micro_batches, self.events)
        step.sample_at_last_step = self.sample_at_last_step
        for counted in self.micro_batches:
            counted.claimed = bool(counted.micro_batch.stepped_by - {index})
            counted.micro_batch.stepped_by |= {index}
        self.micro_batches, self.events = [], []
        self.unseen = False
        return step


def _has_readable_grad(parameter: Any) -> bool:
    """PyTorch warns of the gradient of a tensor that is no leaf."""
    return bool(parameter.is_leaf) and is_plain(local_part(parameter))


def _spread(parameters: list[Any]) -> list[Any]:
    """A few parameters, evenly spread from the first layer to the last."""
    if len(parameters) <= WATCHED_PARAMETERS:
        return parameters
    last = len(parameters) - 1
    return [parameters[i * last // (WATCHED_PARAMETERS - 1)] for i in range(WATCHED_PARAMETERS)]


class Windows:
    """The tracks of all optimizers of this process. Its caller holds the recorder's lock."""

    def __init__(self, backwards: Backwards | None = None) -> None:
        self.resting = False  # steps pass, and nobody looks
        self.several_threads = False  # more than one thread trains
        self._backwards = backwards or Backwards()
        self._tracks: dict[int, Track] = {}
        self._numbered: list[Track] = []
        self._strays: dict[int, int] = {}  # by thread: backwards that reached no optimizer

    def __iter__(self) -> Iterator[Track]:
        return iter(list(self._tracks.values()))

    @property
    def names(self) -> list[str]:
        """Class names of the optimizers that have stepped, by index."""
        return [track.name for track in self._numbered]

    @property
    def steps(self) -> list[int]:
        """Steps taken, by index."""
        return [track.steps for track in self._numbered]

    def track(self, optimizer: Any) -> Track:
        """The track of an optimizer, made on first sight.

        One that is made on a thread other than the main one is taken to be trained there.
        """
        known = self._tracks.get(id(optimizer))
        if known is None or known.optimizer is not optimizer:
            self._forget_dropped()
            known = self._tracks[id(optimizer)] = Track(optimizer)
            known.begin()
            thread = self._backwards.thread()
            if thread != threading.main_thread().ident:
                self._claim(known, thread)
        return known

    def number(self, track: Track) -> int:
        """The track's index, in the order of first steps."""
        if track.index is None:
            track.index = len(self._numbered)
            self._numbered.append(track)
        return track.index

    def note(self, op: Any, of: Any = None) -> None:
        """Note a call of the loop in every open window of this thread; ``of`` is the optimizer it
        was made on."""
        for track in () if self.resting else self.of_this_thread():
            track.note(OpenEvent(op, 0, own=of is None or track.optimizer is of))

    def forget_open(self) -> None:
        """Empty all open windows: the hooks were out for a while, so what they hold is a part."""
        ours = self.of_this_thread()
        for track in self:
            track.forget()
            if track in ours:
                track.begin()
            else:
                track.partial = True

    # ------------------------------------------------------------------ which thread trains

    def of_this_thread(self) -> list[Track]:
        """The tracks that may be looked at here: those of this thread and those of none."""
        thread = self._backwards.thread()
        return [t for t in self if (t.thread == thread or t.is_free()) and not t.shared]

    def begin(self, micro_batch: OpenMicroBatch) -> None:
        """A backward is about to start."""
        for track in self.of_this_thread():
            if track.thread == micro_batch.thread or micro_batch.alone:
                track.begin()
                micro_batch.looked_at.append(track)
            else:
                track.partial = True  # which thread trains with it is not known yet

    def reached(self, micro_batch: OpenMicroBatch) -> list[Track]:
        """The tracks whose gradients the backward that has ended added to."""
        touched = []
        for track in micro_batch.looked_at:
            if track.shared or track.thread not in (None, micro_batch.thread):
                if not track.is_free():
                    continue  # another thread has stepped it meanwhile
            elif track.thread is None and not micro_batch.alone:
                track.partial = True
                continue
            if track.counted != micro_batch.number and track.touched(micro_batch.unseen):
                self._claim(track, micro_batch.thread)
                track.add(micro_batch)
                touched.append(track)
        micro_batch.looked_at.clear()
        if not touched:
            self._strays[micro_batch.thread] = self._strays.get(micro_batch.thread, 0) + 1
        return touched

    def take(self, track: Track) -> str | None:
        """The optimizer steps on this thread; why its window cannot be judged, if so.

        While threads begin to train it shows only by and by which of them trains what. A few
        windows in doubt are left out; the records of all others say so. If only doubts in a row
        counted, a loop that often changes its thread would be judged without those steps.
        """
        thread = self._backwards.thread()
        doubt = STRAY if self._has_strays(track, thread) else None
        if track.thread != thread:
            if not track.is_free():
                track.shared = track.shared or self._backwards.overlapped
                doubt = WANDERING
            self._claim(track, thread)
        if track.shared:
            return SHARED
        if track.is_unreadable():
            return UNREADABLE
        track.doubts += doubt is not None
        track.partial = track.partial or doubt is not None
        return doubt if track.doubts > FEW_DOUBTS else None

    def _has_strays(self, track: Track, thread: int) -> bool:
        """Whether other threads ran backwards, since the last step, that reached no optimizer."""
        strays = sum(count for of, count in self._strays.items() if of != thread)
        before, track.strays = track.strays, strays
        return strays != before

    def _claim(self, track: Track, thread: int) -> None:
        if track.thread == thread:
            return
        track.thread = thread
        others = [t for t in self if t is not track and t.thread != thread and not t.is_free()]
        if not others:
            return
        self.several_threads = True
        parameters = set(map(id, track.parameters()))
        for other in others:
            if not parameters.isdisjoint(map(id, other.parameters())):
                track.shared = other.shared = True

    def _forget_dropped(self) -> None:
        for key, track in list(self._tracks.items()):
            if track.optimizer is None:
                del self._tracks[key]
