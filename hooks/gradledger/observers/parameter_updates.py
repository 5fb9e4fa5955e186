"""Observes parameters: whether replicas are equal, how far a step moves them, local SGD.

Ranks that hold replicas start from equal parameters and keep them equal. In the first steps, where
most mistakes show, every parameter is read; later, a few in turn. A fingerprint of each is sent,
and the service compares the ranks: nothing is sent between the ranks.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from gradledger.capture.async_copy import Deferred, values_soon
from gradledger.capture.gradient_probe import copy_coordinates, copy_each, spread
from gradledger.capture.isolation import is_dtensor
from gradledger.capture.layers.parameter_names import names_of
from gradledger.capture.open_records import OpenStep
from gradledger.capture.replica_sample import OpenModels, OpenReplica
from gradledger.identity import rank_and_world
from gradledger.observers.base import Observer
from gradledger.observers.ranks import fsdp2
from gradledger.observers.ranks.process_groups import sequence_number

if TYPE_CHECKING:
    from gradledger.capture.windows import OptimizerWindow

EVERY = 10  # steps between two measurements
ALL_UNTIL = 8  # steps at which all parameters are read
MOST = 1024  # parameters that are read at one step
IN_TURN = 16  # parameters that are read at later measurements
COORDINATES = 4  # of each
MOST_NAMED = 8  # optimizers: a loop may create one in every step
MOST_TIMES = 8  # that all are read because something else than the optimizer changed them
AVERAGERS = "torch.distributed.algorithms.model_averaging.averagers"


class ParameterUpdates(Observer):
    """Fills ``parameters`` (a fingerprint) and ``update_ratio`` on every tenth step.

    Where several ranks train, it also fills ``replica``: one fingerprint for each parameter.
    """

    facts = ("parameters", "update_ratio", "replica")

    def __init__(self) -> None:
        super().__init__()
        self._totals: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # parameters, by window
        self._named = 0  # optimizers
        # as one of several ranks, which may have no process group
        self._launched = rank_and_world(os.environ)[1] > 1

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample the parameters before the step."""
        if step.update is not None:
            step.parameters_before = step.update.parameters_before
            step.parameters_after = step.update.parameters_after
        elif step.step % EVERY == 1:
            step.parameters_before = copy_coordinates(window.probed_parameters)
        if "sync" not in step.fields and not (self._launched and "sync" not in step.missing):
            return
        held_whole = step.fields.get("outside") or step.fields.get("tensor_group")
        if step.fields.get("wrapper") in (None, "ddp") or held_whole:
            self._sample_replica(step, window)

    def step_ends(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample the parameters after the step."""
        if step.parameters_before is not None:
            step.parameters_after = copy_coordinates(window.probed_parameters)

    def _sample_replica(self, step: OpenStep, window: OptimizerWindow) -> None:
        groups = list(getattr(window.optimizer, "param_groups", ()))
        total = sum(len(group["params"]) for group in groups)
        unnamed = window not in self._totals and self._named < MOST_NAMED
        grown = total > self._totals.get(window, total)  # what joins should be equal on all ranks
        self._totals[window] = total
        if step.step > ALL_UNTIL and step.step % EVERY != 1 and not grown:
            return
        self._named += unnamed
        names = names_of(groups, search=False) if unnamed else None
        _sample(step, window, replica_indices(1 if grown else step.step, total), names)


def _sample(
    step: OpenStep,
    window: OptimizerWindow,
    indices: list[int],
    names: dict[int, str] | None = None,
) -> None:
    parameters = window.parameters()
    peers = step.fields.get("tensor_group", ())
    if step.fields.get("outside"):  # each rank holds the whole of what FSDP2 leaves out
        indices = [index for index in indices if not is_dtensor(parameters[index])]
    elif peers:
        indices = [i for i in indices if fsdp2.is_copied(parameters[i], peers)]
    chosen = [parameters[index] for index in indices]
    if chosen and (peers or not any(map(is_dtensor, chosen))):  # a shard, not a replica
        sample, counts = copy_each(chosen, COORDINATES)
        if sample is not None:
            shapes = [list(parameter.shape) for parameter in chosen]
            of_each = [names[id(parameter)] for parameter in chosen] if names else []
            step.replica = OpenReplica(len(parameters), indices, shapes, counts, sample, of_each)


def replica_indices(step: int, total: int) -> list[int]:
    """The parameters whose fingerprints are sent at a step, the same ones on all ranks."""
    if step <= ALL_UNTIL:
        count = min(total, MOST)
        return [index * total // count for index in range(count)]
    begin = step // EVERY * IN_TURN
    return sorted({(begin + index) % total for index in range(min(total, IN_TURN))})


class _Left(NamedTuple):
    """The sampled parameters as a step left them, the steps until then, and the collectives."""

    parameters: Deferred
    steps: int
    collectives: int | None


class ModelAveraging(Observer):
    """Fills ``averaging``: ranks step on their own gradients, and average their models at times.

    Two signs, where the gradients of a step were not averaged over the ranks:

    - The sampled parameters before the step are not those that the last step left: something else
      than the optimizer has changed them.
      At the end of the process, they are compared with the last step, too.
    - A model averager of PyTorch is called in every step, and is past its warm-up. It averages only
      once in a period, which may be long.
    """

    facts = ("averaging", "models")

    def __init__(self) -> None:
        super().__init__()
        self._averagers: WeakSet[Any] = WeakSet()
        self._times: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of changes, by window
        self._patched = False
        self._left_by_step: WeakKeyDictionary[Any, _Left] = WeakKeyDictionary()  # by window

    def uninstall(self) -> None:
        """Restore the averagers, and drop the samples."""
        super().uninstall()
        self._patched = False
        self._left_by_step.clear()

    def resume(self, windows: list[OptimizerWindow]) -> None:
        """The samples are those of the last sampled step, and parameters have moved since."""
        super().resume(windows)
        self._left_by_step.clear()

    def optimizer_created(self) -> None:
        """Patch PyTorch's averager, if the script has imported it."""
        averager = getattr(sys.modules.get(AVERAGERS), "ModelAverager", None)
        if averager is not None and not self._patched:
            self._patched = True
            self.patch(averager, "__init__", self._wrap_init, always=True)

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Compare the parameters with what the last step left."""
        before = self._left_by_step.pop(window, None)
        if step.fields.get("sync", "averaged") == "averaged":
            return
        if any(_averages(averager, step) for averager in self._averagers):
            step.fields["averaging"] = True
        elif before is not None:
            now = step.parameters_before or copy_coordinates(window.probed_parameters)
            step.models = None if now is None else OpenModels(before.parameters, now)
            self._sample_changed(step, window)
        if all(counted.already_stepped for counted in step.micro_batches):
            self._note_outer(step, window)

    def _sample_changed(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample all parameters, if something has changed some: an average may leave out others."""
        if step.models is None or step.replica is not None or not step.models.differ_at_once():
            return
        times = self._times[window] = self._times.get(window, 0) + 1
        if times <= MOST_TIMES:
            _sample(step, window, replica_indices(1, len(window.parameters())))

    def _note_outer(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample what an outer optimizer steps on, and the inner one's parameters, as they left it.

        DiLoCo: its gradient is made of the changes of the model on all ranks.
        """
        groups = getattr(window.optimizer, "param_groups", ())
        if any(group.get("maximize") for group in groups):
            return  # its gradient has the other sign
        own = spread(window.parameters())  # they may be copies that require no gradient
        shapes = [parameter.shape for parameter in own]
        gradient = copy_coordinates([p.grad for p in own if p.grad is not None])
        for inner, left in self._left_by_step.items():
            alike = shapes == [parameter.shape for parameter in inner.probed_parameters]
            now = copy_coordinates(own) if alike and inner is not window else None
            if now is not None and gradient is not None:
                step.models = OpenModels(left.parameters, now, gradient)

    def step_ends(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample the parameters."""
        if step.fields.get("sync", "averaged") != "averaged":
            after = step.parameters_after or copy_coordinates(window.probed_parameters)
            if after is not None:
                self._left_by_step[window] = _Left(after, window.steps, sequence_number())

    def since_step(self, window: OptimizerWindow) -> OpenModels | None:
        """At the end of the process: the parameters now, if they changed since the last step.

        Ranks that take fewer steps than the period of local SGD may average their models here. The
        last steps may not be sampled: no average was among them if no collective ran.
        """
        left = self._left_by_step.get(window)
        if left is None or (left.steps < window.steps and left.collectives == sequence_number()):
            return None
        now = copy_coordinates(window.probed_parameters)
        values = None if now is None else values_soon([left.parameters, now])
        if now is None or values is None or values[0] == values[1]:
            return None
        return OpenModels(left.parameters, now)

    def _wrap_init(self, original: Any) -> Any:
        def __init__(averager: Any, /, *args: Any, **kwargs: Any) -> None:
            original(averager, *args, **kwargs)
            self.run_guarded(self._averagers.add, averager)

        return __init__


def _averages(averager: Any, step: OpenStep) -> bool:
    """Whether the script calls it in each step, and its warm-up is over."""
    is_called = averager.step > 0 or step.step == 1
    return bool(is_called and averager.step >= averager.warmup_steps)
