"""Calls of ``torch.autograd.grad``: some are the micro-batches of a loop that updates by hand."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from gradledger.autostart.activity import Activity
from gradledger.capture.backwards import Backwards, as_roots
from gradledger.capture.by_hand.updates import UpdatesByHand
from gradledger.capture.isolation import in_functorch
from gradledger.capture.open_records import OpenMicroBatch


class GradCalls:
    """Counts the calls, and records those whose gradients the loop may train with."""

    def __init__(
        self, backwards: Backwards, updates: UpdatesByHand, notify: Callable[..., None]
    ) -> None:
        self._backwards, self._updates, self._notify = backwards, updates, notify
        self._count = 0
        self._functional = 0  # those of them that ``torch.func`` made
        self._recorded = 0  # those of them that were micro-batches

    @property
    def activity(self) -> Activity:
        """What computed gradients in this process, and how often."""
        direct = self._count - self._functional
        return Activity(self._backwards.count - self._recorded, direct, self._functional)

    def begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], skipping: bool
    ) -> tuple[OpenMicroBatch, tuple[Any, ...]] | None:
        """A micro-batch and the inputs, if the loop may update them itself; else None.

        With ``create_graph`` the gradients are a part of another loss.
        """
        self._count += 1
        inside = in_functorch()
        self._functional += inside
        create_graph = args[4] if len(args) > 4 else kwargs.get("create_graph", False)
        if inside or create_graph or skipping:
            return None
        roots = as_roots(args[0] if args else kwargs.get("outputs"))
        inputs = as_roots(args[1] if len(args) > 1 else kwargs.get("inputs"))
        if not all(isinstance(each, torch.Tensor) and each.is_leaf for each in inputs):
            return None
        if not self._updates.reads(inputs):
            return None
        self._recorded += 1
        self._updates.begin_backward(roots, inputs)
        micro_batch = self._backwards.begin(has_grad_tensors=False)
        self._notify("backward_begins", micro_batch, roots)
        micro_batch.started = perf_counter()
        return micro_batch, inputs

    def end(
        self,
        micro_batch: OpenMicroBatch,
        inputs: tuple[Any, ...],
        gradients: Any,
        failed: dict[str, str],
    ) -> None:
        """The call has returned; ``failed`` are the facts of observers that are switched off."""
        self._notify("backward_ends", micro_batch, [])
        micro_batch.missing.update(failed)
        self._updates.add_gradients(micro_batch, inputs, as_roots(gradients))
