"""Observes collectives: how many each backward ran, and whether gradients were averaged.

A process group numbers its collectives. The difference of these sequence numbers, read before and
after a backward, is the number of collectives that the backward ran. The observer adds nothing to
a group, and holds no reference to the result of a collective. Of all-reduces that the script calls
it counts the elements: a loop may combine copies of gradients only, or step before they have ended.

A sequence number is only meaningful as a difference, and only if nothing else ran in between.
Otherwise the earlier number is stale, and the observer discards it:

- Another thread ran a backward meanwhile: the numbers belong to the process, not to a thread. The
  micro-batch gets no ``collectives``, and later steps report them as not measured (``THREADS``).
- Steps were skipped: the number after the last backward is from before the skip, and a difference
  would contain the collectives of every skipped step. ``resume`` forgets the number.

DDP's decision whether to synchronise goes stale in the same way. DDP decides in a forward, for the
next backward. The decision is used once, and cleared when that backward begins; ``resume`` forgets
a decision whose backward was skipped.

``collectives_after`` counts from the end of the thread's last backward to the step, even if that
backward belongs to the window of another optimizer.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradledger.capture.async_copy import Deferred
from gradledger.capture.backwards import Backwards
from gradledger.capture.isolation import is_dtensor
from gradledger.capture.open_records import IN_STEP, CountedMicroBatch, OpenMicroBatch, OpenStep
from gradledger.observers.base import Observer
from gradledger.observers.ranks import fsdp2
from gradledger.observers.ranks.local_gradients import (
    LocalGradients,
    divides_by,
    has_custom_hook,
    join_of,
    sent_bytes,
    trains_alone,
)
from gradledger.observers.ranks.process_groups import (
    FrozenByWrapper,
    describe_apart,
    groups_by_parameter,
    leave_a_turn,
    sequence_number,
    unless_all,
    world,
)
from gradledger.observers.ranks.running_works import RunningWorks, divisor_of

if TYPE_CHECKING:
    from gradledger.capture.windows import OptimizerWindow

THREADS = "another thread trained at the same time: collectives cannot be assigned to a thread"
UNCOUNTED = "this version of PyTorch does not expose the process groups that count collectives"

REJOINED = (
    "ranks with fewer batches leave `Join` early, and take fewer steps: from the second `Join` on, "
    "the steps of one number may not be the same on all ranks"
)
USES_OF_A_WORK = ("wait", "is_completed", "synchronize", "get_future")
# It steps on the gradients as they are, each rank those of its share, and broadcasts parameters.
SHARES_PARAMETERS = "ZeroRedundancyOptimizer"
FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"


class _ThreadCounts(threading.local):
    """State of one thread, which becomes stale in a pause."""

    after_backward: int | None = None  # sequence number at the end of the last backward
    forward: Any = None  # DDP's decision for the next backward: "sync" or "no_sync"
    before: Any = None  # the one for the latest backward that had one
    reduced: int = 0  # elements that the script has all-reduced since the last backward


class Collectives(Observer):
    """Fills ``collectives`` and ``wrapper`` of micro-batches, and ``sync`` of steps."""

    facts = (
        *("collectives", "collectives_after", "sync", "sync_bytes", "reduced_share"),
        *("unwaited_share", "wrapper", "outside", "excluded"),
        *("data_group", "tensor_group", "divisors", "join"),
    )

    def __init__(self, backwards: Backwards) -> None:
        super().__init__()
        self._backwards = backwards
        self._thread = _ThreadCounts()
        self._works = RunningWorks()
        self._watches_functions = False  # those that all-reduce in backward
        self._has_wrapper = False  # whether the script has used a data-parallel wrapper
        self._ddp: weakref.WeakSet[Any] = weakref.WeakSet()  # a script may train several
        # Parameters that required no gradients when DDP was created: it never synchronises them.
        self._frozen_when_wrapped: FrozenByWrapper = weakref.WeakKeyDictionary()
        self._thawed = 0  # of these, how many require gradients by now
        # FSDP1's outermost modules, with their parameters (by id). Between forward and backward,
        # a module may hold plain tensors in their place.
        self._fsdp: weakref.WeakKeyDictionary[Any, frozenset[int]] = weakref.WeakKeyDictionary()
        self._fsdp2 = False  # whether FSDP2 has run a backward
        self._held = fsdp2.HeldGradients()
        self._local = LocalGradients(type(self).__name__)
        # By module that is not imported yet: class, method and wrapper.
        self._pending_patches: dict[str, tuple[str, str, Any]] = {
            FSDP1: ("FullyShardedDataParallel", "forward", self._wrap_fsdp),
            fsdp2.MODULE: ("FSDPParamGroup", "post_backward", self._wrap_fsdp2),
        }
        # By DDP module, the configuration that its latest `Join` context gave it, and their number.
        self._joins: weakref.WeakKeyDictionary[Any, tuple[Any, int]] = weakref.WeakKeyDictionary()
        self._step_began: int | None = None  # sequence number when the step began
        self._module_count = 0  # imported modules when the pending patches were last checked
        # By optimizer, and the number of its parameters then.
        self._constant_fields: dict[int, tuple[int, dict[str, Any]]] = {}
        # By optimizer, over how many ranks DDP averages its parameters, if not over the same ones;
        # none if the script excludes all of them.
        self._apart: dict[int, list[int]] = {}

    def install(self) -> None:
        """Wrap the methods in which a data-parallel wrapper decides whether to synchronise."""
        ddp = sys.modules.get("torch.nn.parallel.distributed")
        if ddp is not None:
            self.patch(ddp.DistributedDataParallel, "__init__", self._wrap_init, always=True)
            self.patch(ddp.DistributedDataParallel, "_pre_forward", self._wrap_ddp_forward)
        if world is not None:
            self._patch_process_groups()
        self._patch_fsdp()

    def _patch_process_groups(self) -> None:
        for name in ("allreduce", "allreduce_coalesced"):
            if name in vars(dist.ProcessGroup):
                self.patch(dist.ProcessGroup, name, self._wrap_all_reduce, virtual=True)
        for name in ("alltoall", "alltoall_base", "all_to_all_single"):
            if name in vars(dist.ProcessGroup):
                self.patch(dist.ProcessGroup, name, self._wrap_all_to_all, virtual=True)
        self.patch(dist.ProcessGroup, "barrier", self._wrap_wait, virtual=True)
        for name in USES_OF_A_WORK:
            self.patch(dist.Work, name, self._wrap_wait, virtual=True)

    def uninstall(self) -> None:
        """Restore everything that ``install`` changed, and remove the hooks of parameters."""
        super().uninstall()
        self._local.release()

    def pause(self) -> None:
        """Remove the hooks of parameters, too."""
        super().pause()
        self._local.release()

    def resume(self, windows: list[OptimizerWindow]) -> None:
        """Forget the stale decisions and sequence numbers from before the pause."""
        super().resume(windows)
        self._thread = _ThreadCounts()
        self._held.clear()

    def _patch_fsdp(self) -> None:
        """Patch FSDP once the script has imported it: that is after ``install``."""
        self._module_count = len(sys.modules)
        for name, (owner, method, wrap) in list(self._pending_patches.items()):
            module = sys.modules.get(name)
            if hasattr(module, owner):
                del self._pending_patches[name]
                self.patch(getattr(module, owner), method, wrap)
                self._constant_fields.clear()

    def _wrap_init(self, original: Any) -> Any:
        def __init__(module: Any, /, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            self.run_guarded(self._add_new_ddp, module)  # a script may call only module.module

        return __init__

    def _wrap_ddp_forward(self, original: Any) -> Any:
        def _pre_forward(module: Any, /, *inputs: Any, **kwargs: Any) -> Any:
            self.run_guarded(self._note_ddp_decision, module)
            return original(module, *inputs, **kwargs)

        return _pre_forward

    def _add_new_ddp(self, module: Any) -> None:
        self._add_ddp(module)
        frozen = [p for p in module.module.parameters() if not p.requires_grad]
        if frozen:
            self._frozen_when_wrapped[module] = frozen

    def _add_ddp(self, module: Any) -> None:
        if module not in self._ddp:
            self._ddp.add(module)
            weakref.finalize(module, leave_a_turn).atexit = False
            self._has_wrapper = True
            self._constant_fields.clear()

    def _note_ddp_decision(self, module: Any) -> None:
        self._add_ddp(module)
        config = join_of(module)
        if config is not None:
            latest, count = self._joins.get(module, (None, 0))
            self._joins[module] = (config, count + (config is not latest))
        if torch.is_grad_enabled() and self._thread.forward != "sync":
            self._thread.forward = "sync" if module.require_backward_grad_sync else "no_sync"

    def _wrap_all_reduce(self, original: Any) -> Any:
        """Of the calls from Python: those of DDP's reducer do not pass here."""

        def all_reduce(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            before = self.run_guarded(self._sample_reduced, *args[:1])
            work = original(group, *args, **kwargs)
            divisor = self.run_guarded(divisor_of, group, *args[1:], *kwargs.values())
            self.run_guarded(self._count_reduced, divisor, work, before, *args[:1])
            return work

        return all_reduce

    def _wrap_all_to_all(self, original: Any) -> Any:
        def all_to_all(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            self.run_guarded(self._note_exchange)
            return original(group, *args, **kwargs)

        return all_to_all

    def _note_exchange(self) -> None:
        """Tokens that ranks have exchanged send their gradients back in the backward."""
        micro_batch = self._backwards.current()
        if micro_batch is not None:
            micro_batch.exchanges = True

    def _sample_reduced(self, tensors: Any = ()) -> Deferred | None:
        wrapped = self._has_wrapper or self._fsdp2  # FSDP2 reduces on another stream
        return None if wrapped else self._works.sample_before(tensors)

    def _count_reduced(
        self, divisor: int | None, work: Any, before: Deferred | None, *tensors: Any
    ) -> None:
        self._thread.reduced += self._works.add(work, *tensors)
        if before is not None and self._works.sample(work, tensors[0], before, divisor or 1):
            self._patch_functions()

    def _patch_functions(self) -> None:
        """Once an autograd function all-reduces in its backward: what it does to the sum."""
        if not self._watches_functions:
            self._watches_functions = True
            self.patch(torch.autograd.function.BackwardCFunction, "apply", self._wrap_function)

    def _wrap_function(self, original: Any) -> Any:
        def apply(node: Any, /, *gradients: Any) -> Any:
            passed = original(node, *gradients)
            if self._works.in_functions:
                self.run_guarded(self._works.function_ends, node, passed)
            return passed

        return apply

    def _wrap_wait(self, original: Any) -> Any:
        ends = getattr(original, "__name__", "") == "wait"

        def wait(of: Any, /, *args: Any, **kwargs: Any) -> Any:
            self.run_guarded(self._works.waited, of)
            result = original(of, *args, **kwargs)
            if ends:
                self.run_guarded(self._works.ended, of)
            return result

        return wait

    def _wrap_fsdp(self, original: Any) -> Any:
        def forward(module: Any, /, *inputs: Any, **kwargs: Any) -> Any:
            self.run_guarded(self._add_fsdp, module)
            return original(module, *inputs, **kwargs)

        return forward

    def _add_fsdp(self, module: Any) -> None:
        if module._is_root is not False and not self._fsdp.get(module):  # None at first
            self._fsdp[module] = frozenset(map(id, module.parameters()))
            self._has_wrapper = True
            self._constant_fields.clear()

    def _wrap_fsdp2(self, original: Any) -> Any:
        def post_backward(group: Any, *unused: Any) -> Any:
            self.run_guarded(self._note_fsdp2_decision, group)
            return original(group, *unused)

        return post_backward

    def _note_fsdp2_decision(self, group: Any) -> None:
        """FSDP2 decides in backward. Gradients that it does not reduce stay outside ``.grad``."""
        if not self._fsdp2:
            self._fsdp2 = True
            self._constant_fields.clear()
        self._held.note(group)
        micro_batch = self._backwards.current()
        if micro_batch is None or not fsdp2.trains(group, micro_batch):
            return
        if not fsdp2.reduces(group):
            micro_batch.wrapper = micro_batch.wrapper or "no_sync"
            micro_batch.hidden_parameters |= {id(p.sharded_param) for p in group.fsdp_params}
            return
        micro_batch.wrapper = "sync"
        reduction = fsdp2.reduction(group)
        if reduction not in micro_batch.reductions:
            micro_batch.reductions |= {reduction}

    def _note_fsdp_decision(self, module: Any, micro_batch: OpenMicroBatch) -> None:
        """FSDP1 decides before backward. Until it reduces, ``.grad`` may not change."""
        if micro_batch.wrapper != "sync":
            micro_batch.wrapper = "sync" if module._sync_gradients else "no_sync"
        if not module._sync_gradients:
            micro_batch.hidden_parameters |= self._fsdp[module]

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Read the sequence numbers before backward."""
        if len(sys.modules) != self._module_count:
            self._patch_fsdp()
        self._held.check(micro_batch.marked_windows)
        self._works.begin(micro_batch)
        number, last = sequence_number(), self._thread.after_backward
        micro_batch.collectives_before = number
        if self._has_wrapper:
            self._note_decisions(micro_batch)
        elif number is not None and last is not None and not self._fsdp2:
            micro_batch.collectives_between = number - last

    def _note_decisions(self, micro_batch: OpenMicroBatch) -> None:
        """Record whether the wrappers synchronise this backward."""
        if self._ddp:
            micro_batch.wrapper = self._thread.forward or "bypassed"
            self._thread.before = self._thread.forward or self._thread.before
            self._thread.forward = None
        for module in self._fsdp:
            self._note_fsdp_decision(module, micro_batch)

    def backward_ends(self, micro_batch: OpenMicroBatch, reached: list[OptimizerWindow]) -> None:
        """Record the number of collectives that this backward ran."""
        self._works.inside = None
        before, after = micro_batch.collectives_before, sequence_number()
        self._thread.after_backward, self._thread.reduced = after, 0
        if before is not None and after is not None and micro_batch.alone:
            micro_batch.collectives = after - before
        compiled = "_pre_forward" in self._compiled
        if micro_batch.wrapper == "bypassed" and (compiled or self._thread.before is not None):
            # A compiled forward decides out of sight. The forwards of two modules may come first,
            # then both backwards; Lightning prepares each backward. The collectives show how.
            micro_batch.wrapper = "sync" if micro_batch.collectives else None
        if self._ddp and has_custom_hook(self._ddp):
            for window in reached:
                self._local.watch(window, self.on_failure)
        elif micro_batch.collectives and not (self._has_wrapper or self._fsdp2):
            for window in reached:
                if window.micro_batches:
                    window.micro_batches[-1].sample_own = self._local.so_far(window)
                self._local.watch_arriving(window, self.on_failure)

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Record how this window's gradients were combined over the ranks."""
        if trains_alone(step, self._ddp):
            return
        if self._backwards.overlapped or world is None:
            reason = THREADS if self._backwards.overlapped else UNCOUNTED
            step.missing.update(dict.fromkeys(self.facts, reason))
            return
        running = self._backwards.current()  # the optimizer steps from a hook inside backward
        self._step_began = sequence_number() if running is None else None
        before = self._thread.after_backward if running is None else running.collectives_before
        now = sequence_number()
        if now is not None and before is not None:
            step.fields["collectives_after"] = now - before
        step.fields.update(self._fields_of(window))
        if any("HYBRID" in str(module.sharding_strategy) for module in self._fsdp):
            step.missing["norm"] = "FSDP's hybrid sharding: several ranks hold each part"
        step.fields["sync"] = self._sync(step)
        step.fields["exchanges"] = any(c.micro_batch.exchanges for c in step.micro_batches)
        if "wrapper" not in step.fields and running is None:
            step.fields |= self._works.describe(window, self._thread.reduced)
        self._held.add_to(step, window)
        fsdp2.describe(step)
        sizes = self._apart.get(id(window))
        if sizes is not None and (step.fields["sync"] == "averaged" or not sizes):
            describe_apart(step, sizes)
        joined = {divides_by(module, window) for module in self._joins} - {None}
        if len(joined) == 1 and step.fields["sync"] == "averaged":
            step.fields["join"] = joined.pop()
        rejoined = any(count > 1 for _, count in self._joins.values())
        if rejoined and join_of(window.optimizer) is None:  # else it steps along
            step.missing |= dict.fromkeys(("sync", "replica", "post_factor"), REJOINED)
        step.may_be_combined = step.fields["sync"] != "averaged" or _combines_outside(step)
        local = self._local.take(window)
        if local is not None and step.micro_batches:
            step.micro_batches[-1].sample_after = local  # from before hooks that may combine it
            step.fields["before_hooks"] = True
            step.fields["own_sums"] = self._local.from_begin and not self._ddp
        if running is not None and not (self._has_wrapper or self._fsdp2):
            self._local.watch_arriving(window, self.on_failure)

    def step_ends(self, step: OpenStep, window: OptimizerWindow) -> None:
        """An optimizer may combine the gradients itself, in its step, after they were sampled.

        So may a hook of its step that waits for an all-reduce which the loop began before.
        """
        if "unwaited_share" in step.fields:  # the step, or its hooks, may wait
            step.fields |= {"unwaited_share": None} | self._works.describe(window, 0)
        now = sequence_number()
        ran = now is not None and self._step_began is not None and now > self._step_began
        waits = not ran and (step.fields.get("reduced_share") or 0.0) >= 1
        if step.fields.get("sync") == "averaged" or not (step.micro_batches and (ran or waits)):
            return
        if step.fields.get("data_group") == [dist.get_rank()] or step.update is not None:
            return
        if window.name == SHARES_PARAMETERS:
            return
        before, after = step.sample_at_step, window.sample()
        window.probe.release()
        if before is None or after is None:
            step.missing |= {"sync": IN_STEP} if ran else {}
            return
        step.may_be_combined, step.ran_in_step = True, ran
        step.sample_before_step, step.sample_at_step = before, after
        window.sample_at_last_step = after

    def _sync(self, step: OpenStep) -> str:
        if step.fields.get("data_group") == [dist.get_rank()]:
            return "none"  # the collectives are those of tensor parallelism
        applied = [counted.micro_batch for counted in _since_cleared(step)]
        if step.fields.get("wrapper") == "fsdp2" and self._fsdp2:
            synced = any(micro_batch.wrapper == "sync" for micro_batch in applied)
            return "averaged" if synced else "none"  # it also gathers parameters in backward
        inside = sum(micro_batch.collectives or 0 for micro_batch in applied)
        if inside and step.fields.get("wrapper") and not has_custom_hook(self._ddp):
            return "averaged"
        return "unknown" if inside or step.fields.get("collectives_after") else "none"

    def _fields_of(self, window: OptimizerWindow) -> dict[str, Any]:
        """The fields that stay constant until a wrapper, or a parameter, is added."""
        frozen = self._frozen_when_wrapped.values()
        thawed = sum(p.requires_grad for parameters in frozen for p in parameters)
        if thawed != self._thawed:
            self._thawed = thawed
            self._constant_fields.clear()
        count = sum(len(group["params"]) for group in getattr(window.optimizer, "param_groups", ()))
        described, fields = self._constant_fields.get(id(window), (0, {}))
        if described != count:
            fields = self._describe(window)
            self._constant_fields[id(window)] = count, fields
        return fields

    def _describe(self, window: OptimizerWindow) -> dict[str, Any]:
        self._apart.pop(id(window), None)
        parameters = [p for p in window.parameters() if p.requires_grad]
        held = groups_by_parameter(self._ddp, self._frozen_when_wrapped)
        synced = [p for p in parameters if id(p) in held]
        if not synced and any(map(is_dtensor, parameters)):
            return self._describe_dtensors(parameters)
        if self._fsdp:
            sharded = any(module.sharding_strategy.name != "NO_SHARD" for module in self._fsdp)
            return {"wrapper": "fsdp", "sharded": sharded}
        if not synced:
            return {}
        groups = {held[id(p)] for p in synced}
        if len(groups) > 1 or groups == {()}:
            self._apart[id(window)] = sorted({len(group) for group in groups if group})
        if groups == {()}:
            return {}
        outside = len(parameters) - len(synced)
        fields = {"wrapper": "ddp", "outside": outside, "sync_bytes": sent_bytes(self._ddp, synced)}
        fields |= {"excluded": sum(not held[id(p)] for p in synced)} if () in groups else {}
        return fields | unless_all(max(groups, key=len))

    def _describe_dtensors(self, parameters: list[Any]) -> dict[str, Any]:
        """FSDP2, with tensor parallelism or without, or tensor parallelism alone."""
        # where its private class was not found, all DTensors are taken for FSDP2's
        missed = fsdp2.MODULE in sys.modules and fsdp2.MODULE in self._pending_patches
        by_fsdp2 = self._fsdp2 or missed
        fields: dict[str, Any] = {}
        if by_fsdp2:
            fields = {"wrapper": "fsdp2"}
            ignored = sum(not is_dtensor(parameter) for parameter in parameters)
            if ignored:
                fields["outside"] = ignored
        holders = fsdp2.tensor_ranks(parameters, by_fsdp2)
        if len(holders) > 1:
            fields["tensor_group"] = list(holders)
        return fields | unless_all(fsdp2.data_ranks(parameters, by_fsdp2))


def _since_cleared(step: OpenStep) -> list[CountedMicroBatch]:
    """Without the micro-batches whose gradients the script is known to have discarded."""
    fresh = [index for index, counted in enumerate(step.micro_batches) if counted.fresh]
    return step.micro_batches[max(fresh, default=0) :]


def _combines_outside(step: OpenStep) -> bool:
    """Whether the loop may have combined gradients that DDP does not combine: those of parameters
    outside the wrapper, or of other groups of ranks."""
    beyond = step.fields.get("outside") or step.fields.get("data_group")
    return bool(beyond and step.fields.get("collectives_after"))
