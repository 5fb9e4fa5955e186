"""Observes the source of the data: the kind of sampler of a DataLoader, and the batches drawn.

``loss_terms`` takes fingerprints of the loss's targets, which distinguish the data themselves.
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from gradledger.capture.open_records import OpenStep
from gradledger.observers.base import Observer
from gradledger.observers.batches.drawn import DrawnBatches

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

_WRAPPED = 5  # samplers in one another: those of Accelerate share out, or skip, batches
# Modules whose samplers draw from another one as it is; a class of the script may reorder it.
_UNWRAPPED = (BatchSampler.__module__, "accelerate.data_loader")
# Names in the code of a sampler that draws an order, and packages whose samplers are not read.
_SHUFFLING = {"randperm", "shuffle", "permutation", "permuted", "multinomial"}
_NOT_READ = ("torch", "builtins", "typing")


class DataLoaders(Observer):
    """Fills ``sampler``, ``batches``, ``batch_size`` and ``loader_batches`` of steps."""

    facts = ("sampler", "batches", "batch_size", "loader_batches")

    def __init__(self, windows: OpenWindows) -> None:
        super().__init__()
        self._windows = windows
        self._sampler_kind: str | None = None
        self._drawn_batches = DrawnBatches()

    def install(self) -> None:
        """Wrap ``DataLoader.__iter__``."""
        self.patch(DataLoader, "__iter__", self._wrap_iter, always=True)

    def _wrap_iter(self, original: Any) -> Any:
        def __iter__(loader: Any) -> Any:
            iterator = original(loader)
            if torch.is_grad_enabled():  # otherwise it is the loader of an evaluation
                self.run_guarded(self._add, loader, iterator)
            return iterator

        return __iter__

    def _add(self, loader: Any, iterator: Any) -> None:
        self._sampler_kind = _kind_of(loader)
        self._drawn_batches.add(loader, iterator)
        for window in self._windows.of_this_thread():
            window.code.locate("batches", window.steps)

    def resume(self, windows: list[OptimizerWindow]) -> None:
        """Discard the batches of the skipped steps."""
        for window in windows:
            self._drawn_batches.take(window)

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Record the sampler and the batches of the window, as far as they are known."""
        if self._windows.several_threads:  # which thread draws from a loader is not observed
            return
        if self._sampler_kind is not None:
            step.fields["sampler"] = self._sampler_kind
        step.fields.update(self._drawn_batches.take(window))


def _kind_of(loader: Any) -> str | None:
    """Whether its samples are shuffled; None for a sampler class that is not known.

    The ``sampler`` of a loader that got a batch sampler is a sequential one that it does not use.
    """
    batches = _attribute(loader, "batch_sampler")
    sampler = _attribute(loader, "sampler") if batches is None else batches
    for _ in range(_WRAPPED):
        kind = _kind_of_one(sampler)
        if kind is not None or type(sampler).__module__ not in _UNWRAPPED:
            return kind
        inner = _attribute(sampler, "batch_sampler")
        sampler = _attribute(sampler, "sampler") if inner is None else inner
    return None


def _kind_of_one(sampler: Any) -> str | None:
    shuffle = _attribute(sampler, "shuffle")  # DistributedSampler
    if isinstance(shuffle, bool):
        return "random" if shuffle else "sequential"
    name = type(sampler).__name__
    if "Random" in name or (shuffle is None and _shuffles(sampler)):
        return "random"
    return "sequential" if name == "SequentialSampler" else None


def _shuffles(sampler: Any) -> bool:
    """Whether the code of a sampler of the script draws an order each time it is iterated.

    Unless it reads an attribute that is False, and may switch that off.
    """
    values = getattr(sampler, "__dict__", {})
    off = {name for name, value in values.items() if value is False and name != "drop_last"}
    for each in type(sampler).__mro__:
        if each.__module__.partition(".")[0] in _NOT_READ:
            return False
        functions = {k: f for k, f in vars(each).items() if isinstance(f, FunctionType)}
        functions.pop("__init__", None)
        names = {name for f in functions.values() for name in f.__code__.co_names}
        if not _SHUFFLING.isdisjoint(names):
            return off.isdisjoint(names)
    return False


def _attribute(owner: Any, name: str) -> Any:
    """What it is, without running code of the script, such as a property."""
    return inspect.getattr_static(owner, name, None)
