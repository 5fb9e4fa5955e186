"""Observes the stages of a pipeline (``torch.distributed.pipelining``): only the last has a loss.

A schedule runs the backward of each micro-batch stage by stage, on several ranks. The last stage
starts it from the loss. Every other stage starts from the gradients that the next one sent: its
backwards are parts of the micro-batches of the last stage (``MicroBatch.relayed``).

A rank may hold several stages. If the last is among them, the windows are those of the last stage:
only its gradients are probed, so that the backwards of the other stages reach no window. The
schedule scales the gradients of a stage when that stage is done, and the others may still run.

Zero-bubble schedules split a backward: ``backward_one_chunk`` computes the gradients of a stage's
inputs, and ``backward_weight_one_chunk`` later adds to those of its weights, both without
``torch.autograd.backward``. Together they are one micro-batch.

FSDP2 does not reduce the gradients of a stage in any backward: ``perform_reduce_grad`` does after
the last one, just before ``scale_grads``. The reduction counts as a part of the last micro-batch.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import torch.distributed as dist

from gradledger.autostart.path.gradledger_autostart import ImportHook
from gradledger.capture.open_records import OpenMicroBatch, OpenStep
from gradledger.observers.base import Observer
from gradledger.observers.ranks import fsdp2
from gradledger.observers.ranks.process_groups import sequence_number

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

MODULE, STAGE = "torch.distributed.pipelining.stage", "_PipelineStageBase"
DDP = ("torch.nn.parallel.distributed", "DistributedDataParallel")
FSDP2 = ("torch.distributed.fsdp", "FSDPModule")


class SplitBackward(Protocol):
    """Records a backward in two parts."""

    def begin_inputs(self, roots: Any) -> OpenMicroBatch:
        """The gradients of inputs are about to be computed from ``roots``."""

    def end_inputs(self, micro_batch: OpenMicroBatch) -> None:
        """They have been."""

    def begin_weights(self, micro_batch: OpenMicroBatch) -> None:
        """The gradients of weights are about to be added to, on the same thread."""

    def end_weights(self, micro_batch: OpenMicroBatch) -> None:
        """They have been."""


class _ThreadStage(threading.local):
    stage: Any = None  # whose backward runs
    is_last_backward = False  # of the window
    before_reduction: int | None = None  # sequence number, until the gradients are reduced


class PipelineStages(Observer):
    """Fills ``relayed`` of micro-batches and ``pipeline`` of steps."""

    facts = ("pipeline",)

    def __init__(self, windows: OpenWindows, split: SplitBackward) -> None:
        super().__init__()
        self._windows, self._split = windows, split
        self._thread = _ThreadStage()
        self._stages: weakref.WeakSet[Any] = weakref.WeakSet()
        # The stages whose parameters an optimizer holds, as far as they were matched.
        self._stages_of: weakref.WeakKeyDictionary[OptimizerWindow, list[weakref.ref[Any]]]
        self._stages_of = weakref.WeakKeyDictionary()
        self._between: dict[tuple[int, int], OpenMicroBatch] = {}  # stage, chunk: inputs are done
        self._import_hook = ImportHook(
            MODULE, functools.partial(self.run_guarded, self._patch_stage)
        )

    # ------------------------------------------------------------------ install

    def install(self) -> None:
        """Wrap what a schedule calls of a stage, as soon as the script has imported stages."""
        self._import_hook.install()

    def uninstall(self) -> None:
        """Restore it."""
        self._import_hook.uninstall()
        super().uninstall()
        self._between.clear()

    def resume(self, windows: list[OptimizerWindow]) -> None:
        """Forget backwards whose first part was observed before the pause."""
        super().resume(windows)
        self._between.clear()

    def _patch_stage(self) -> None:
        kind = getattr(sys.modules[MODULE], STAGE, None)
        if kind is not None:
            self.patch(kind, "__init__", self._wrap_init, always=True)
            self.patch(kind, "backward_one_chunk", self._wrap_backward)
            self.patch(kind, "backward_weight_one_chunk", self._wrap_weights)
            if hasattr(kind, "perform_reduce_grad"):  # from PyTorch 2.9 on
                self.patch(kind, "perform_reduce_grad", self._wrap_reduction)
                self.patch(kind, "scale_grads", self._wrap_scaling)

    def _wrap_init(self, original: Any) -> Any:
        def __init__(stage: Any, /, *args: Any, **kwargs: Any) -> None:
            original(stage, *args, **kwargs)
            self.run_guarded(self._add_stage, stage)

        return __init__

    def _wrap_backward(self, original: Any) -> Any:
        def backward_one_chunk(stage: Any, /, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            names = dict(zip(("loss", "full_backward", "last_backward"), args, strict=False))
            micro_batch = self.run_guarded(self._begin_inputs, stage, {**names, **kwargs})
            try:
                return original(stage, bwd_chunk_id, *args, **kwargs)
            finally:
                self.run_guarded(self._end_inputs, stage, bwd_chunk_id, micro_batch)

        return backward_one_chunk

    def _wrap_weights(self, original: Any) -> Any:
        def backward_weight_one_chunk(
            stage: Any, /, bwd_chunk_id: int, *args: Any, **kwargs: Any
        ) -> Any:
            last = bool(args[0] if args else kwargs.get("last_backward"))
            micro_batch = self.run_guarded(self._begin_weights, stage, bwd_chunk_id, last)
            try:
                return original(stage, bwd_chunk_id, *args, **kwargs)
            finally:
                self.run_guarded(self._end_weights, micro_batch)

        return backward_weight_one_chunk

    def _wrap_reduction(self, original: Any) -> Any:
        def perform_reduce_grad(stage: Any, /, *args: Any, **kwargs: Any) -> Any:
            self.run_guarded(self._begin_reduction, stage)
            result = original(stage, *args, **kwargs)
            self.run_guarded(self._end_reduction, stage)  # unless gradients were scaled
            return result

        return perform_reduce_grad

    def _wrap_scaling(self, original: Any) -> Any:
        def scale_grads(stage: Any, /, *args: Any, **kwargs: Any) -> Any:
            self.run_guarded(self._end_reduction, stage)
            return original(stage, *args, **kwargs)

        return scale_grads

    # ------------------------------------------------------------------ stages and optimizers

    def optimizer_created(self) -> None:
        """Match its parameters with those of the stages."""
        self._match()

    def _add_stage(self, stage: Any) -> None:
        if stage not in self._stages:
            self._stages.add(stage)
            self._match()

    def _match(self) -> None:
        """Match stages with the optimizers that hold their parameters, unless they are matched."""
        for stage in self._stages:
            own = set(map(id, stage.submod.parameters()))
            own |= set(map(id, fsdp2.sharded_parameters(stage.submod)))
            for window in self._windows.of_this_thread():
                stages = self._stages_of.setdefault(window, [])
                parameters = [p for p in window.parameters() if id(p) in own]
                if parameters and not any(matched() is stage for matched in stages):
                    stages.append(weakref.ref(stage))
                    if stage.is_last:
                        window.choose_probed(parameters)

    # ------------------------------------------------------------------ backward

    def _begin_inputs(self, stage: Any, arguments: dict[str, Any]) -> OpenMicroBatch | None:
        self._enter(stage, bool(arguments.get("last_backward")))
        is_full = arguments.get("full_backward", True) or stage.dw_builder is not None
        if is_full or stage.is_first:  # by ``torch.autograd.backward``; of the first stage later
            return None
        return self._split.begin_inputs((arguments["loss"],) if stage.is_last else ())

    def _end_inputs(self, stage: Any, chunk: int, micro_batch: OpenMicroBatch | None) -> None:
        self._thread.stage = None
        if micro_batch is not None:
            self._split.end_inputs(micro_batch)
            self._between[id(stage), chunk] = micro_batch

    def _begin_weights(self, stage: Any, chunk: int, is_last: bool) -> OpenMicroBatch | None:
        self._enter(stage, is_last)
        micro_batch = self._between.pop((id(stage), chunk), None)
        if micro_batch is not None:
            self._split.begin_weights(micro_batch)
            if _is_wrapped(stage, FSDP2):  # its hooks run in ``torch.autograd.backward`` alone
                micro_batch.wrapper = "no_sync"
                probed = [p for w in self._windows_of(stage) for p in w.probed_parameters]
                micro_batch.hidden_parameters |= set(map(id, probed))
        return micro_batch

    def _end_weights(self, micro_batch: OpenMicroBatch | None) -> None:
        if micro_batch is not None:
            self._split.end_weights(micro_batch)
        self._thread.stage = None

    def _enter(self, stage: Any, is_last_backward: bool) -> None:
        self._thread.stage, self._thread.is_last_backward = stage, is_last_backward
        self._add_stage(stage)

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """State why a stage before the last has no loss."""
        stage = self._thread.stage
        if stage is not None and not stage.is_last:
            micro_batch.relayed = True
            reason = f"stage {stage.stage_index} of a pipeline of {stage.num_stages} has no loss"
            micro_batch.missing.update({"terms": reason, "loss": reason})

    def backward_ends(self, micro_batch: OpenMicroBatch, reached: list[OptimizerWindow]) -> None:
        """A schedule decides when DDP synchronises, and not in a forward.

        It also decides which gradients are passed on, and when: see ``InnerBackwards``.
        """
        if self._thread.stage is not None:
            micro_batch.input_leaves = ()
        if _is_wrapped(self._thread.stage, DDP):
            micro_batch.wrapper = "sync" if self._thread.is_last_backward else "no_sync"

    # ------------------------------------------------------------------ FSDP2's reduction

    def _begin_reduction(self, stage: Any) -> None:
        self._thread.before_reduction = sequence_number() if _is_wrapped(stage, FSDP2) else None

    def _end_reduction(self, stage: Any) -> None:
        """The reduced gradients are in ``.grad``; the schedule may scale them next."""
        before, now = self._thread.before_reduction, sequence_number()
        self._thread.before_reduction = None
        if before is None or now is None:
            return
        for window in self._windows_of(stage):
            if window.micro_batches:
                counted = window.micro_batches[-1]
                counted.sample_after = window.sample()
                counted.micro_batch.wrapper = "sync"
                counted.micro_batch.collectives = now - before

    def _windows_of(self, stage: Any) -> list[OptimizerWindow]:
        """Those whose micro-batches are backwards of this stage."""
        mine = []
        for window, references in self._stages_of.items():
            stages = [reference() for reference in references]
            has_loss = any(each is not None and each.is_last for each in stages)
            if stage in stages and (stage.is_last or not has_loss):
                mine.append(window)
        return mine

    # ------------------------------------------------------------------ step

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Record the ranks of the pipeline."""
        stages = filter(None, (stage() for stage in self._stages_of.get(window, ())))
        stage = next(stages, None)
        if stage is not None:
            step.fields["pipeline"] = list(dist.get_process_group_ranks(stage.group))


def _is_wrapped(stage: Any, wrapper: tuple[str, str]) -> bool:
    kind = getattr(sys.modules.get(wrapper[0]), wrapper[1], None)
    return kind is not None and isinstance(getattr(stage, "submod", None), kind)
