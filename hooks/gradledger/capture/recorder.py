"""Watches this process: turns backwards and optimizer steps into open records.

One recorder is installed per process. It owns the observers, tells each what happens, and hands
closed windows to a sink. An observer that raises is switched off; the rest goes on.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Set
from time import perf_counter, time
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradledger import guard
from gradledger.capture.async_copy import ship
from gradledger.capture.backwards import Backwards
from gradledger.capture.isolation import isolated, never_compile, uncounted
from gradledger.capture.open_records import OpenMicroBatch, OpenStep
from gradledger.capture.optimizer_rounds import Rest, Rounds
from gradledger.capture.step_sampling import StepSampler
from gradledger.capture.windows import Track, Windows
from gradledger.observers.base import Observer, Patch
from gradledger.observers.clipping import Clipping
from gradledger.observers.collectives import Collectives
from gradledger.observers.dataloaders import Data
from gradledger.observers.grad_scaler import Scaler
from gradledger.observers.gradient_norm import GradientNorm
from gradledger.observers.gradient_sample import GradientSample
from gradledger.observers.losses.loss_terms import LossTerms
from gradledger.observers.lr_scheduler import Schedule
from gradledger.observers.parameter_updates import Updates

Sink = Callable[[OpenStep], None]
T = TypeVar("T")

# How long the end of the process waits for another thread's hook, which a device may block.
FINISH_SECONDS = 1.0

for _method in (guard.fail_open.__enter__, guard.fail_open.__exit__):
    never_compile(_method)


class Recorder:
    """The hooks of one process, in one place, installed and removed together."""

    def __init__(self, sink: Sink, step_sampler: StepSampler | None = None) -> None:
        self._sink = sink
        self._step_sampler = step_sampler or StepSampler(None)
        self._ahead = 1  # from this round to the one that is watched next
        self._rest: Rest | None = None  # while steps only pass
        self.last_step_time = 0.0  # when the last step ended, sampled or not; since the epoch
        self._lock = threading.RLock()  # held for the hooks' own microseconds, never for torch's
        self._backwards = Backwards()
        self.windows = Windows(self._backwards)
        self._rounds = Rounds(self.windows)
        self.losses = LossTerms()
        self._observers: list[Observer] = [
            Scaler(self.windows, self.close_skipped),
            self.losses,
            Data(self.windows),
            Collectives(self._backwards),
            GradientSample(),
            Clipping(self.windows),
            GradientNorm(),
            Schedule(self.windows),
            Updates(),
        ]
        for observer in self._observers:
            observer.failed = functools.partial(self._switch_off, observer)
            observer.lock = self._lock
        self._facts = tuple(fact for observer in self._observers for fact in observer.facts)
        self._listeners: dict[str, list[tuple[Observer, Callable[..., None]]]] = {}
        self._failed: dict[str, str] = {}  # fact -> reason, of observers that were switched off
        self._patches: list[Patch] = []
        self._handles: list[Any] = []
        self._stepping: dict[int, OpenStep] = {}  # by optimizer, between its two step hooks
        # The books themselves: after a fault in them, nothing more that they say could be true.
        self._around_backward = guard.fail_open("the backward hook", self._give_up)
        self._around_step = guard.fail_open("the optimizer hook", self._give_up)

    # ------------------------------------------------------------------ in place, and out again

    def install(self) -> None:
        """Hook backward, the optimizers and whatever the observers need. Safe to call twice."""
        if self._patches:
            return
        self._step_sampler.start_clock()
        self._backward = Patch(torch.autograd, "backward", self._wrap_backward)
        self._patches.append(self._backward)
        self._patches.append(Patch(Optimizer, "__init__", self._wrap_init))
        before, after = self._step_hook(self._before_step), self._step_hook(self._after_step)
        self._handles.append(register_optimizer_step_pre_hook(before))
        self._handles.append(register_optimizer_step_post_hook(after))
        self._each("install")
        if self._rest is not None:  # they were taken out meanwhile
            self._start_rest(self._rest)

    def uninstall(self) -> None:
        """Restore everything, in the opposite order."""
        self._step_sampler.stop_clock()
        self._each("uninstall")
        while self._handles:
            self._handles.pop().remove()
        while self._patches:
            self._patches.pop().undo()
        self._backwards.clear()

    def finish(self) -> None:
        """The process ends: tell of windows that a guard kept dropping, and no step ever closed."""
        if not self._lock.acquire(timeout=FINISH_SECONDS):
            return
        try:
            with isolated(), guard.fail_open("the end of the recording", self._give_up):
                for track in self.windows.of_this_thread():
                    if self._patches and track.dropped():
                        self.close_skipped(track.optimizer)
        finally:
            self._lock.release()

    # ------------------------------------------------------------------ what the script calls

    def watch(self, optimizer: Any) -> None:
        """Watch an optimizer that was made before the hooks were installed."""
        with self._lock, isolated():
            self.windows.track(optimizer)

    def resume(self) -> None:
        """Install the hooks again. What open windows held is forgotten."""
        with self._lock, isolated():
            self.windows.forget_open()
        self.install()

    # ------------------------------------------------------------------ backward: a micro-batch

    def _wrap_backward(self, original: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            roots = args[0] if args else kwargs.get("tensors")
            whole = _materialised(roots)
            if whole is not roots and args:
                args = (whole, *args[1:])
            elif whole is not roots:
                kwargs["tensors"] = whole
            if self._backwards.nested():
                self._safely(self._around_backward, self._nested, whole)
                return original(*args, **kwargs)
            lent = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
            try:
                return self._observed(original, whole, lent, args, kwargs)
            finally:  # an interrupt may come inside our own part, too
                self._backwards.leave()

        return backward

    @never_compile
    @uncounted
    def _observed(self, original: Any, roots: Any, lent: Any, args: Any, kwargs: Any) -> Any:
        """Call the outermost backward, and record it."""
        micro_batch = self._safely(self._around_backward, self._begin, roots, lent)
        if micro_batch is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            self._safely(self._around_backward, self._release, micro_batch)
            raise
        self._safely(self._around_backward, self._end, micro_batch, perf_counter())
        return result

    @never_compile
    def _safely(self, around: guard.fail_open, body: Callable[..., T], *args: Any) -> T | None:
        """Run what is ours, for one thread at a time; None where it failed."""
        with self._lock, isolated(), around:
            return body(*args)
        return None

    def _begin(self, tensors: Any, lent: Any) -> OpenMicroBatch:
        began = perf_counter()
        micro_batch = self._backwards.begin(lent is not None)
        with self._around_backward:
            self.windows.begin(micro_batch)
            self._each("backward_begins", micro_batch, _roots(tensors))
        micro_batch.started = perf_counter()
        self._step_sampler.hook_seconds += micro_batch.started - began
        return micro_batch

    def _nested(self, tensors: Any) -> None:
        """One backward inside another is no micro-batch of its own.

        Outside a graph task it is the same call: PyTorch passes it to a ``__torch_function__``,
        which calls it again.
        """
        micro_batch = self._backwards.here()
        if micro_batch is not None and self._backwards.in_graph_task():
            self._each("backward_nested", micro_batch, _roots(tensors))

    def _end(self, micro_batch: OpenMicroBatch, ended: float) -> None:
        micro_batch.backward_ms = round((ended - micro_batch.started) * 1e3, 3)
        self._release(micro_batch)
        if not self._patches:
            return
        touched = self.windows.reached(micro_batch)
        if self.windows.several_threads and self._step_sampler.may_skip:
            self.sample_every_step()  # threads step in no order that would repeat
        self._each("backward_ends", micro_batch, touched)
        micro_batch.missing.update(self._failed)
        self._step_sampler.hook_seconds += perf_counter() - ended

    def _release(self, micro_batch: OpenMicroBatch) -> None:
        self._backwards.end(micro_batch)
        for undo in micro_batch.undo:
            undo()
        micro_batch.undo.clear()

    # ------------------------------------------------------------------ step: the window closes

    def _wrap_init(self, original: Any) -> Any:
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._safely(self._around_step, self.windows.track, optimizer)

        return __init__

    def _step_hook(self, body: Callable[..., None]) -> Callable[..., None]:
        """A hook of optimizers. A compiled step breaks its graph for it, where no graph is: PyTorch
        itself breaks it between the hooks and the update."""

        def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            self._safely(self._around_step, body, optimizer, args, kwargs)

        # What torch.compiler.disable sets, without importing all of torch._dynamo.
        hook._torchdynamo_disable = True  # type: ignore[attr-defined]
        never_compile(hook)
        return hook

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._rest is not None:
            return
        began = perf_counter()
        track = self.windows.track(optimizer)
        if track.is_abstract():
            return
        if _has_closure(args, kwargs):
            track.stepping = True  # backward runs inside step()
        else:
            self._stepping[id(optimizer)] = self._close(track)
        self._step_sampler.hook_seconds += perf_counter() - began

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        track = self.windows.track(optimizer)
        if self._rest is not None:
            self._passed(track, self._rest)
            return
        began = perf_counter()
        step = self._stepping.pop(id(optimizer), None)
        if track.stepping:
            step = self._close(track)
            track.stepping = False
        if step is not None:
            if step.observed:
                self._each("step_ends", step, track)
            self._step_sampler.hook_seconds += perf_counter() - began
            self._finish(step, track)

    def close_skipped(self, optimizer: Any) -> None:
        """The GradScaler found a non-finite gradient: the window ends without a step."""
        track = self.windows.track(optimizer)
        if self._rest is not None:
            self._passed(track, self._rest)
            return
        step = self._close(track)
        step.fields["skipped"] = True
        self._finish(step, track)

    def _close(self, track: Track) -> OpenStep:
        hidden = self.windows.take(track)
        running = self._backwards.here()
        if running is not None and not track.stepping and not hidden:
            track.add(running)  # an optimizer that steps from a hook inside backward
            track.counted = running.number
        step = track.close(self.windows.number(track), time())
        step.facts = self._facts
        if hidden is not None:
            step.hide(hidden)
        else:
            self._each("step_begins", step, track)
        return step

    def _finish(self, step: OpenStep, track: Track) -> None:
        self.last_step_time = step.time
        self._rounds.add(track)
        if track.partial and step.observed:
            track.partial, self._ahead = False, 1
            return
        track.partial = False
        step.missing.update(self._failed)
        self._look_ahead(step, track)
        ship(list(step.deferred()))
        self._sink(step)

    # ------------------------------------------------------------------ steps that only pass

    def sample_every_step(self) -> None:
        """Let no step pass from now on."""
        self._step_sampler, self._ahead = StepSampler(None), 1
        if self._rest is not None:
            self._rest.left = 0

    def _look_ahead(self, step: OpenStep, track: Track) -> None:
        """Say with the steps of one round which ones are watched next, and rest at its end."""
        number = self._rounds.begins
        if number is not None:
            self._ahead = self._step_sampler.choose_next(number) - number
        elif not self._rounds.as_before:
            self._ahead = 1
        passing = self._ahead - 1
        if passing:
            step.fields["next"] = self._rounds.next_of(track, passing)
            if self._rounds.repeated:
                self._start_rest(self._rounds.rest(passing))

    def _start_rest(self, rest: Rest) -> None:
        self._rest, self.windows.resting = rest, True
        self._backward.undo()
        self._each("rest")

    def _passed(self, track: Track, rest: Rest) -> None:
        """A step that is not watched has ended."""
        self.last_step_time = time()
        track.steps += 1
        rest.add(track)
        number = rest.number
        if rest.broken:
            self._rounds.forget()
            self._wake(set(self.windows) - {track})
        elif number is not None and (rest.left <= 0 or self._step_sampler.is_overdue(number)):
            self._wake(set())

    def _wake(self, begun: Set[Track]) -> None:
        """Watch again; the windows of those that have ``begun`` are a part."""
        self._rest, self.windows.resting = None, False
        self._backward.redo()
        self.windows.forget_open()
        for track in begun:
            track.partial = True
        self._each("wake", list(self.windows))

    # ------------------------------------------------------------------ when something fails

    def _give_up(self, where: str, error: Exception) -> None:
        guard.report(where, error)
        self.uninstall()

    def _each(self, method: str, *args: Any) -> None:
        listeners = self._listeners.get(method)
        if listeners is None:
            listeners = self._listeners[method] = self._listening(method)
        for observer, tell in listeners:
            try:
                tell(*args)
            except Exception as error:
                self._switch_off(observer, observer.title, error)

    def _listening(self, method: str) -> list[tuple[Observer, Callable[..., None]]]:
        """Observers that do something at this moment; most do nothing at most moments."""
        base = getattr(Observer, method)
        all_do = ("install", "uninstall", "rest", "wake")  # the base has a body for these
        does = [
            o for o in self._observers if method in all_do or getattr(type(o), method) is not base
        ]
        return [(observer, getattr(observer, method)) for observer in does]

    def _switch_off(self, observer: Observer, where: str, error: Exception) -> None:
        guard.report(where, error)
        if observer not in self._observers:
            return
        self._observers.remove(observer)
        self._listeners = {}
        reason = f"the {where} failed: {type(error).__name__}"
        self._failed.update(dict.fromkeys(observer.facts, reason))
        with guard.fail_open(where):
            observer.uninstall()

    @property
    def backwards(self) -> int:
        """How many outermost backwards have begun."""
        return self._backwards.count


@never_compile
def _materialised(tensors: Any) -> Any:
    """What backward was called on, and where it is an iterator what it yields: to look at it is
    to consume it."""
    if isinstance(tensors, (torch.Tensor, tuple, list)) or not hasattr(tensors, "__iter__"):
        return tensors
    return tuple(tensors)


def _roots(tensors: Any) -> tuple[Any, ...]:
    """Tensors or graph edges (``torch.autograd.graph.GradientEdge``, a tuple itself)."""
    if isinstance(tensors, torch.Tensor) or hasattr(tensors, "output_nr"):
        return (tensors,)
    return tuple(tensors) if isinstance(tensors, (tuple, list)) else ()  # PyTorch will refuse it


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = [*args[1:], kwargs.get("closure")] if args else [kwargs.get("closure")]
    return any(callable(a) for a in given)
