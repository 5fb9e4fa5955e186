"""Observes this process: turns backwards and optimizer steps into open records.

One recorder is installed per process. It owns the observers, notifies each of what happens, and
passes closed windows to a sink. An observer that raises is switched off; the others continue.

A backward passes through in this order (``_wrap_backward``):

1. ``Backwards`` registers it for its thread. A nested one only gets ``backward_nested``.
2. ``OpenWindows.begin_backward`` reads the version marks of the gradients.
3. Every observer's ``backward_begins``. ``GradScalerCalls`` is first in the list, because
   ``LossTerms`` needs the scale that it attaches to the micro-batch. ``LossTerms`` puts hooks on
   the loss nodes; ``Collectives`` attaches the parameters whose gradients FSDP1 hides.
4. PyTorch's backward. The hooks on the loss nodes copy the gradients that arrive there.
5. The hooks on the loss nodes are removed. ``OpenWindows.end_backward`` reads the marks again, and
   counts the micro-batch in the windows that it reached.
6. Every observer's ``backward_ends``, with those windows: the gradient sample follows.

A step passes through in this order (``_before_step``, ``_after_step``):

1. PyTorch's pre-hook closes the window: what follows belongs to the next one.
2. Every observer's ``step_begins``, with the gradients that are about to be applied. With
   ``step(closure)``, 1 and 2 happen after 3, because the closure runs the backward.
3. PyTorch's step.
4. The post-hook: every observer's ``step_ends``.
5. ``OptimizerRounds`` and ``StepSampler`` choose the next sampled step; one copy to the host
   starts for all values on a device; the sink gets the step.
6. If a GradScaler skips the step, no step hook runs, and ``close_skipped`` closes the window.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Set
from time import perf_counter, time
from typing import Any, TypeVar

import torch

from gradledger import guard
from gradledger.capture.async_copy import start_copies
from gradledger.capture.autograd_grad import GradCalls
from gradledger.capture.backwards import Backwards, as_roots, with_sequence
from gradledger.capture.by_hand.updates import UpdatesByHand
from gradledger.capture.code.script_sources import ScriptSources
from gradledger.capture.isolation import capturing, isolated, never_compile, skip_in_stacklevel
from gradledger.capture.open_parts import GONE, OpenUpdate
from gradledger.capture.open_records import OpenMicroBatch, OpenStep
from gradledger.capture.optimizer_rounds import OptimizerRounds, SkippedRounds
from gradledger.capture.step_hooks import Hooks, StepHooks, outside_graphs
from gradledger.capture.step_sampling import StepSampler
from gradledger.capture.windows import OpenWindows, OptimizerWindow
from gradledger.observers.accumulation import Accumulation
from gradledger.observers.base import Observers, Patch
from gradledger.observers.batches.dataloaders import DataLoaders
from gradledger.observers.clipping import Clipping
from gradledger.observers.grad_scaler import GradScalerCalls
from gradledger.observers.gradient_sample import GradientSample
from gradledger.observers.graph_captures import GraphCaptures
from gradledger.observers.inner_backwards import InnerBackwards
from gradledger.observers.losses.loss_terms import LossTerms
from gradledger.observers.lr_scheduler import LearningRates
from gradledger.observers.norms.gradient_norm import GradientNorm
from gradledger.observers.norms.layer_norms import LayerNorms
from gradledger.observers.optimizer_steps import begins_step, ends_step, has_closure
from gradledger.observers.parameter_updates import ModelAveraging, ParameterUpdates
from gradledger.observers.pipeline_stages import PipelineStages
from gradledger.observers.ranks.collectives import Collectives
from gradledger.observers.ranks.shares import Shares
from gradledger.observers.resumes import Resumes
from gradledger.observers.zero_grad import ZeroGradCalls

Sink = Callable[[OpenStep], None]
T = TypeVar("T")

# How long the end of the process waits for a hook on another thread, which a device may block.
FINISH_SECONDS = 1.0

for _method in (guard.fail_open.__enter__, guard.fail_open.__exit__):
    never_compile(_method)


class Recorder:
    """All hooks of one process, installed and removed together."""

    def __init__(self, sink: Sink, step_sampler: StepSampler | None = None) -> None:
        self._sink, self._step_sampler = sink, step_sampler or StepSampler(None)
        self._rounds_ahead = 1  # from this round to the next sampled one
        self._skipped: SkippedRounds | None = None  # while steps are skipped
        self.last_step_time = 0.0  # when the last step ended, sampled or not; since the epoch
        self._lock = threading.RLock()  # held for the hooks' own code, never for PyTorch's
        self._backwards = Backwards()
        self.windows = OpenWindows(self._backwards)
        self._rounds = OptimizerRounds(self.windows)
        self.sources = ScriptSources()
        self.updates_by_hand = UpdatesByHand(self.windows, self._close_updated)
        self.losses = LossTerms(self.windows)
        self.captures, self.models = GraphCaptures(), ModelAveraging()
        self._observers = Observers(
            [
                GradScalerCalls(self.windows, self.close_skipped),
                PipelineStages(self.windows, self),
                self.losses,
                InnerBackwards(self.windows),
                DataLoaders(self.windows),
                Collectives(self._backwards),
                GradientSample(),
                Shares(self.windows),
                Clipping(self.windows),
                GradientNorm(),
                LayerNorms(self.windows),
                LearningRates(self.windows),
                ParameterUpdates(),
                ZeroGradCalls(self.windows),
                self.models,
                Resumes(self.windows),
                Accumulation(),
                self.captures,
            ],
            self._lock,
        )
        self._notify = self._observers.notify
        self.grad_calls = GradCalls(self._backwards, self.updates_by_hand, self._notify)
        self._patches: list[Patch] = []
        before, after = self._step_hook(self._before_step), self._step_hook(self._after_step)
        self._step_hooks = StepHooks(Hooks(self._optimizer_created, before, after))
        self._stepping: dict[int, OpenStep] = {}  # by optimizer, between its two step hooks
        # After a fault of the recorder itself no record is reliable: it removes all hooks.
        self._backward_guard = guard.fail_open("the backward hook", self._fail)
        self._step_guard = guard.fail_open("the optimizer hook", self._fail)

    # ------------------------------------------------------------------ install, uninstall

    def install(self) -> None:
        """Hook backward, the optimizers and what the observers need. Safe to call twice."""
        if self._patches:
            return
        self._step_sampler.start_clock()
        self._backward = Patch(torch.autograd, "backward", self._wrap_backward)
        self._patches += [self._backward, Patch(torch.autograd, "grad", self._wrap_grad)]
        self._step_hooks.install()
        self._notify("install")
        if self._skipped is not None:  # the hooks were removed while steps were skipped
            self._start_skipping(self._skipped)

    def uninstall(self) -> None:
        """Restore everything, in reverse order."""
        self._step_sampler.stop_clock()
        self._notify("uninstall")
        self._step_hooks.uninstall()
        while self._patches:
            self._patches.pop().undo()
        self._backwards.clear()

    def finish(self) -> None:
        """The process ends: report windows that the script abandoned and no step ever closed."""
        if not self._lock.acquire(timeout=FINISH_SECONDS):
            return
        try:
            with isolated(), guard.fail_open("the end of the recording", self._fail):
                if self._patches:
                    for window in self.windows.abandoned():
                        self.close_skipped(window.optimizer)
                    self.updates_by_hand.finish()
                    facts, models = self._observers.facts, self.models.since_step
                    for step, window in self.windows.left_open(time(), facts, models):
                        self._send(step, window)
        finally:
            self._lock.release()

    # ------------------------------------------------------------------ called by the session

    def watch(self, optimizer: Any) -> None:
        """Watch an optimizer that was created before the hooks were installed."""
        with self._lock, isolated():
            self._add_optimizer(optimizer)

    def resume(self) -> None:
        """Install the hooks again. The contents of open windows are discarded."""
        with self._lock, isolated():
            self.windows.discard_open()
        self.install()

    # ------------------------------------------------------------------ backward: a micro-batch

    def _wrap_backward(self, original: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            roots, args, kwargs = with_sequence(args, kwargs)
            if self._backwards.is_nested():
                self._run_guarded(self._backward_guard, self._begin_nested, roots)
                return original(*args, **kwargs)
            grad_tensors = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
            try:
                return self._record_backward(original, roots, grad_tensors, args, kwargs)
            finally:  # an interrupt may come inside the hooks, too
                self._backwards.leave()

        return backward

    @never_compile
    @skip_in_stacklevel
    def _record_backward(
        self, original: Any, roots: Any, grad_tensors: Any, args: Any, kwargs: Any
    ) -> Any:
        """Call the outermost backward, and record it."""
        micro_batch = self._run_guarded(
            self._backward_guard, self._begin_backward, roots, grad_tensors
        )
        if micro_batch is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            self._run_guarded(self._backward_guard, self._release, micro_batch)
            raise
        self._run_guarded(self._backward_guard, self._end_backward, micro_batch, perf_counter())
        return result

    @never_compile
    def _run_guarded(self, around: guard.fail_open, body: Callable[..., T], *args: Any) -> T | None:
        """Run a part of the hooks, one thread at a time; None if it failed, or in a capture."""
        if not capturing():
            with self._lock, isolated(), around:
                return body(*args)
        return None

    def _begin_backward(self, roots: Any, grad_tensors: Any) -> OpenMicroBatch:
        began = perf_counter()
        with self._backward_guard:
            self.updates_by_hand.begin_backward(as_roots(roots))
        micro_batch = self._backwards.begin(grad_tensors is not None)
        with self._backward_guard:
            self.windows.begin_backward(micro_batch)
            self.updates_by_hand.in_backward.begin_backward(micro_batch)
            self._notify("backward_begins", micro_batch, as_roots(roots))
        micro_batch.started = perf_counter()
        self._step_sampler.hook_seconds += micro_batch.started - began
        return micro_batch

    # ------------------------------------------------------------------ torch.autograd.grad

    def _wrap_grad(self, original: Any) -> Any:
        def grad(*args: Any, **kwargs: Any) -> Any:
            call = None
            if not self._backwards.is_nested():
                begin, skipping = self.grad_calls.begin, self._skipped is not None
                call = self._run_guarded(self._backward_guard, begin, args, kwargs, skipping)
            if call is None:
                return original(*args, **kwargs)
            try:
                gradients = original(*args, **kwargs)
            except BaseException:
                self._run_guarded(self._backward_guard, self._release, call[0])
                raise
            finally:
                self._backwards.leave()
            self._run_guarded(self._backward_guard, self._end_grad, *call, gradients)
            return gradients

        return grad

    def _end_grad(
        self, micro_batch: OpenMicroBatch, inputs: tuple[Any, ...], gradients: Any
    ) -> None:
        micro_batch.backward_ms = round((perf_counter() - micro_batch.started) * 1e3, 3)
        self._release(micro_batch)
        self.grad_calls.end(micro_batch, inputs, gradients, self._observers.failed)

    # ------------------------------------------------------------------ a backward in two parts

    def begin_inputs(self, roots: Any) -> OpenMicroBatch:
        """The first part of a split backward begins; it adds to no gradient of an optimizer."""
        micro_batch = self._backwards.begin(has_grad_tensors=not roots)
        self._notify("backward_begins", micro_batch, roots)
        micro_batch.started = perf_counter()
        return micro_batch

    def end_inputs(self, micro_batch: OpenMicroBatch) -> None:
        """It has ended: remove the hooks of its graph."""
        micro_batch.backward_ms = (perf_counter() - micro_batch.started) * 1e3
        self._release(micro_batch)

    def begin_weights(self, micro_batch: OpenMicroBatch) -> None:
        """The second part begins, which adds to the gradients."""
        self._backwards.resume(micro_batch)
        self.windows.begin_backward(micro_batch)
        micro_batch.started = perf_counter() - (micro_batch.backward_ms or 0.0) / 1e3

    def end_weights(self, micro_batch: OpenMicroBatch) -> None:
        """It has ended, and with it the micro-batch."""
        self._end_backward(micro_batch, perf_counter())
        self._backwards.leave()

    def _begin_nested(self, roots: Any) -> None:
        """A backward inside another one is not a separate micro-batch.

        Outside a graph task it is the same call: PyTorch passes it to a ``__torch_function__``,
        which calls it again.
        """
        micro_batch = self._backwards.current()
        if micro_batch is not None and self._backwards.in_graph_task():
            self._notify("backward_nested", micro_batch, as_roots(roots))

    def _end_backward(self, micro_batch: OpenMicroBatch, ended: float) -> None:
        micro_batch.backward_ms = round((ended - micro_batch.started) * 1e3, 3)
        self._release(micro_batch)
        if not self._patches:
            return
        reached = self.windows.end_backward(micro_batch)
        if self.windows.several_threads and self._step_sampler.may_skip:
            self.sample_every_step()  # the steps of several threads have no repeating order
        self._notify("backward_ends", micro_batch, reached)
        self.updates_by_hand.end_backward(micro_batch, reached)
        micro_batch.missing.update(self._observers.failed)
        self._step_sampler.hook_seconds += perf_counter() - ended

    def _release(self, micro_batch: OpenMicroBatch) -> None:
        self._backwards.end(micro_batch)
        while micro_batch.undo:
            micro_batch.undo.pop()()

    # ------------------------------------------------------------------ step: the window closes

    def _optimizer_created(self, optimizer: Any, name: str, late: bool = False) -> None:
        self._run_guarded(self._step_guard, self._add_optimizer, optimizer, name, late)

    def _add_optimizer(self, optimizer: Any, name: str | None = None, late: bool = False) -> None:
        """``late``: it may be created between a backward and its step, and then misses the first.

        ``name``: that of its class, if another object stands for it.
        """
        window = self.windows.window_of(optimizer)
        window.name = name or window.name
        window.partial = late and bool(self.backwards)
        self._notify("optimizer_created")

    def _step_hook(self, body: Callable[..., None]) -> Callable[..., None]:
        """A step hook of optimizers, outside compiled graphs."""

        def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            self._run_guarded(self._step_guard, body, optimizer, args, kwargs)

        return outside_graphs(hook)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        window = self.windows.window_of(optimizer)
        if not begins_step(window, optimizer) or self._skipped is not None:
            return
        began = perf_counter()
        if self.windows.is_inner(window) or window.is_abstract():
            return
        if has_closure(args, kwargs):
            window.stepping = True  # backward runs inside step()
        else:
            self._stepping[id(optimizer)] = self._close_window(window)
            window.applying = True
        self._step_sampler.hook_seconds += perf_counter() - began

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        window = self.windows.window_of(optimizer)
        window.applying = False
        if not ends_step(window, optimizer, self._stepping) or window.inner:
            return
        if self._skipped is not None:
            self._skip_step(window, self._skipped)
            return
        began = perf_counter()
        step = self._stepping.pop(id(optimizer), None)
        if window.stepping:
            step = self._close_window(window)
            step.fields["closure"] = True
            window.stepping = False
        if step is not None:
            if step.observed:
                self._notify("step_ends", step, window)
            self._step_sampler.hook_seconds += perf_counter() - began
            self._send(step, window)

    def close_skipped(self, optimizer: Any) -> None:
        """The GradScaler found a non-finite gradient: the window ends without a step."""
        window = self.windows.window_of(optimizer)
        if self._skipped is not None:
            self._skip_step(window, self._skipped)
            return
        step = self._close_window(window)
        step.fields["skipped"] = True
        self._send(step, window)

    def _close_updated(self, window: OptimizerWindow, update: OpenUpdate) -> None:
        """The parameters of a window have changed, and no optimizer of PyTorch changed them.

        Nothing announces such an update, so no step can be skipped.
        """
        if self._step_sampler.may_skip:
            self.sample_every_step()
        step = self._close_window(window, update)
        step.fields["by_hand"] = True
        if step.observed and update.gradient is None:
            step.missing["post_factor"] = GONE
        self._send(step, window)

    def _close_window(self, window: OptimizerWindow, update: OpenUpdate | None = None) -> OpenStep:
        unmeasured = self.windows.prepare_step(window)
        running = self._backwards.current()
        if running is not None and not window.stepping and not unmeasured:
            window.add_micro_batch(running, runs=True)  # from a hook inside backward
            window.counted_number = running.number
        step = self.windows.close(window, time())
        step.facts, step.update = self._observers.facts, update
        if update is not None and not update.untouched:
            step.missing["norm"] = GONE
        if unmeasured is not None:
            step.mark_unmeasured(unmeasured)
        else:
            self._notify("step_begins", step, window)
            if update is None and not window.fed:
                window.starved = step.sample_at_step is not None
        return step

    def _send(self, step: OpenStep, window: OptimizerWindow) -> None:
        self.last_step_time = step.time
        self._rounds.add(window)
        if window.partial and step.observed:
            window.partial, self._rounds_ahead = False, 1
            return
        window.partial = False
        step.missing.update(self._observers.failed)
        step.code = functools.partial(self.sources.locate, window.code.take())
        self._plan_skip(step, window)
        start_copies(list(step.deferred()))
        self._sink(step)

    # ------------------------------------------------------------------ skipped steps

    def sample_every_step(self) -> None:
        """Skip no step from now on."""
        self._step_sampler, self._rounds_ahead = StepSampler(None), 1
        if self._skipped is not None:
            self._skipped.left = 0

    def _plan_skip(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Announce the next sampled step in the record, and start to skip at the round's end.

        The sampler chooses at the first step of a round; every later step of the round announces
        the same choice for its own optimizer.
        """
        number = self._rounds.begun_number
        if number is not None:
            self._rounds_ahead = self._step_sampler.choose_next(number) - number
        elif not self._rounds.matches_last:
            self._rounds_ahead = 1
        rounds = self._rounds_ahead - 1
        if rounds:
            step.fields["next"] = self._rounds.next_sampled_step(window, rounds)
            if self._rounds.repeats_last:
                self._start_skipping(self._rounds.skip(rounds))

    def _start_skipping(self, skipped: SkippedRounds) -> None:
        self._skipped, self.windows.skipping = skipped, True
        self._backward.undo()
        self._notify("pause")

    def _skip_step(self, window: OptimizerWindow, skipped: SkippedRounds) -> None:
        """A step that is not sampled has ended."""
        self.last_step_time = time()
        window.steps += 1
        skipped.add(window)
        number = skipped.ended_number
        if skipped.broken:
            self._rounds.reset()
            self._stop_skipping(set(self.windows) - {window})
        elif number is not None and (skipped.left <= 0 or self._step_sampler.is_overdue(number)):
            self._stop_skipping(set())

    def _stop_skipping(self, begun: Set[OptimizerWindow]) -> None:
        """Sample again. The windows in ``begun`` may have begun during the skip: no record."""
        self._skipped, self.windows.skipping = None, False
        self._backward.redo()
        self.windows.discard_open()
        for window in begun:
            window.partial = True
        self._notify("resume", list(self.windows))

    # ------------------------------------------------------------------ failures

    def _fail(self, where: str, error: Exception) -> None:
        guard.report(where, error)
        self.uninstall()

    @property
    def backwards(self) -> int:
        """How many outermost backwards have begun."""
        return self._backwards.count
