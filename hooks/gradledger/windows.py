"""Which micro-batches and calls belong to which optimizer's window.

A backward belongs to the window of every optimizer whose gradients it added to. That is read from
a few of the optimizer's parameters without touching a value: adding to a gradient in place moves
the tensor's version, and a first gradient is a new tensor. FSDP2 adds to the shard inside a
DTensor, whose own version stays.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Set
from typing import Any

from gradledger.deferred import Deferred
from gradledger.ledger import Counted, OpenEvent, OpenMicroBatch, OpenStep
from gradledger.sampling import Coordinates, own_part

WATCHED_PARAMETERS = 4
ABSENT = (0, 0)
# A loop that never steps must not fill the memory.
MAX_OPEN_MICRO_BATCHES = 4096
MAX_OPEN_EVENTS = 512


class Track:
    """One optimizer and its open window."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.name = type(optimizer).__name__
        self.index: int | None = None  # given at the first step, the same on every rank
        self.steps = 0
        self.micro_batches: list[Counted] = []
        self.events: list[OpenEvent] = []
        self.watched: list[Any] = []
        self.coordinates = Coordinates()
        self.sample_at_last_step: Deferred | None = None
        self.fresh: bool | None = True  # gradients absent or zero when the last backward began
        self.before: Deferred | None = None  # sampled then, where that was not yet known
        self.stepping = False  # inside step(closure): the window closes when it returns
        self.unseen = False  # gradients of the last backward are kept out of ``.grad``
        self.counted = 0  # number of the micro-batch that was counted while it still ran
        self.partial = False  # nobody looked while the window began
        self._marks: list[tuple[int, int]] = []

    @property
    def optimizer(self) -> Any:
        """The optimizer, or None when the script has dropped it."""
        return self._optimizer()

    def parameters(self) -> list[Any]:
        """All parameters of the optimizer."""
        optimizer = self.optimizer
        groups = [] if optimizer is None else optimizer.param_groups
        return [p for group in groups for p in group["params"]]

    # ------------------------------------------------------------------ a backward comes and goes

    def begin(self) -> None:
        """A backward is about to start: what are the gradients now, and who changed them?"""
        if not self.watched:
            self.watched = _spread([p for p in self.parameters() if p.requires_grad])
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
        return [ABSENT if g is None else (id(g), own_part(g)._version) for g in gradients]

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
        self.begin()

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


def _spread(parameters: list[Any]) -> list[Any]:
    """A few parameters, evenly spread from the first layer to the last."""
    if len(parameters) <= WATCHED_PARAMETERS:
        return parameters
    last = len(parameters) - 1
    return [parameters[i * last // (WATCHED_PARAMETERS - 1)] for i in range(WATCHED_PARAMETERS)]


class Windows:
    """The tracks of all optimizers of this process."""

    def __init__(self) -> None:
        self.resting = False  # steps pass, and nobody looks
        self._tracks: dict[int, Track] = {}
        self._numbered: list[Track] = []

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
        """The track of an optimizer, made on first sight."""
        known = self._tracks.get(id(optimizer))
        if known is None or known.optimizer is not optimizer:
            self._forget_dropped()
            known = self._tracks[id(optimizer)] = Track(optimizer)
            known.begin()
        return known

    def number(self, track: Track) -> int:
        """The track's index, in the order of first steps."""
        if track.index is None:
            track.index = len(self._numbered)
            self._numbered.append(track)
        return track.index

    def note(self, op: Any, of: Any = None) -> None:
        """A call of the loop, told to every open window; ``of`` is the optimizer it was made on."""
        for track in () if self.resting else self:
            track.note(OpenEvent(op, 0, own=of is None or track.optimizer is of))

    def forget_open(self) -> None:
        """Empty all open windows: the hooks were out for a while, so what they hold is a part."""
        for track in self:
            track.forget()

    def _forget_dropped(self) -> None:
        for key, track in list(self._tracks.items()):
            if track.optimizer is None:
                del self._tracks[key]
