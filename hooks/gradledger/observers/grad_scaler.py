"""Observes GradScaler: which backward is scaled, and the order of the calls of its methods.

The observer copies the tensor of the scale. It never calls ``get_scale()``, which waits for the
device.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.optim import Optimizer

from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain
from gradledger.capture.open_parts import OpenScaler
from gradledger.capture.open_records import OpenMicroBatch, OpenStep
from gradledger.observers.base import Observer
from gradledger.observers.losses.found_losses import graph_inputs, sequence_number
from gradledger.observers.losses.node_names import ADDITIONS, SCALINGS
from gradledger.records import Op

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

COMPILED = "the GradScaler runs inside a compiled function, where it cannot be seen"
OF_SEVERAL_VALUES = "GradScaler.scale multiplied several values, which may be in the loss"

MOST_PRODUCTS = 64  # scaled losses that a thread remembers: those of the windows that are open
MOST_NODES = 200  # between the root of backward and its scaled losses
# What a loop does with scaled losses before it calls backward; each passes the scale on.
PASSES_ON = ADDITIONS | SCALINGS | {"MeanBackward0"}

NodeKey = tuple[int, str]  # the number of a node in its thread, and its name


class _Product(NamedTuple):
    """A loss, or losses, times the scale."""

    scale: Deferred
    ordinal: int
    single: bool  # one number


class _ThreadScaling(threading.local):
    """State of one thread."""

    stepping: Any = None  # the scaler whose step() runs

    def __init__(self) -> None:
        # The latest last. A reference to a node would keep its graph alive.
        self.products: dict[NodeKey, _Product] = {}
        # Those since the last update that no backward has started from.
        self.unused: set[NodeKey] = set()
        # Scaler, window and its steps of scaler steps on an object that stands for the optimizer.
        self.awaited: dict[int, tuple[Any, OptimizerWindow, int]] = {}


class GradScalerCalls(Observer):
    """Fills ``scale`` and ``scaler``, notes the scaler's calls, and reports skipped steps."""

    facts = ("scale", "scaler", "grad_scale", "unscale", "update", "scaler_step")

    def __init__(self, windows: OpenWindows, close_skipped: Callable[[Any], None]) -> None:
        super().__init__()
        self._windows, self._close_skipped = windows, close_skipped
        self._thread = _ThreadScaling()
        self._ordinals: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._count = 0
        self._loaded: WeakSet[Any] = WeakSet()
        self._takes_scaler: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # by optimizer

    def install(self) -> None:
        """Wrap the methods of ``GradScaler``, which subclasses call, too."""
        owner = torch.amp.GradScaler
        self.patch(owner, "scale", self._wrap_scale)
        self.patch(owner, "unscale_", self._wrap_unscale)
        self.patch(owner, "step", self._wrap_step, always=True)  # to count the steps that it skips
        self.patch(owner, "update", self._wrap_update)
        self.patch(owner, "load_state_dict", self._wrap_load, always=True)

    def _wrap_scale(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            self.run_guarded(self._note_scaled, scaler, scaled)
            return scaled

        return scale

    def _note_scaled(self, scaler: Any, scaled: Any) -> None:
        if not scaler.is_enabled():
            return
        ordinal, products = self._ordinal_of(scaler), self._thread.products
        if not is_plain(scaler._scale):
            return
        # volatile: update() changes the scale in place
        scale = Deferred(scaler._scale, volatile=True)
        for each in scaled if isinstance(scaled, list | tuple) else [scaled]:
            node = each.grad_fn if isinstance(each, torch.Tensor) else None
            if node is not None and sequence_number(node) is not None:
                products[_key(node)] = _Product(scale, ordinal, each.numel() == 1)
                self._thread.unused.add(_key(node))
        while len(products) > MOST_PRODUCTS:
            oldest = next(iter(products))
            del products[oldest]
            self._thread.unused.discard(oldest)

    def _wrap_unscale(self, original: Any) -> Any:
        def unscale_(scaler: Any, optimizer: Any) -> Any:
            result = original(scaler, optimizer)
            if self._thread.stepping is None and scaler.is_enabled():
                self.run_guarded(self._add_event, "unscale", scaler, optimizer)
            return result

        return unscale_

    def _wrap_step(self, original: Any) -> Any:
        def step(scaler: Any, /, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return original(scaler, optimizer, *args, **kwargs)
            try:
                self._thread.stepping = scaler
                steps = self.run_guarded(self._before_step, scaler, optimizer)
                result = original(scaler, optimizer, *args, **kwargs)
                self.run_guarded(self._after_step, optimizer, steps)
            finally:
                self._thread.stepping = None
            return result

        return step

    def _add_event(self, op: Op, scaler: Any, optimizer: Any = None) -> None:
        self._windows.add_event(op, self._represented(optimizer), self._ordinal_of(scaler))

    def _represented(self, optimizer: Any) -> Any:
        """The optimizer that an object stands for.

        fastai's ``MixedPrecision`` passes itself, with the ``param_groups`` of the optimizer. Its
        step only notes that the scaler did not skip, and fastai calls that of the optimizer later.
        """
        if optimizer is None or isinstance(optimizer, Optimizer):
            return optimizer
        groups = getattr(optimizer, "param_groups", ())
        held = [id(parameter) for group in groups for parameter in group["params"]]
        for window in self._windows:
            if held == list(map(id, window.parameters())):
                return window.optimizer
        return optimizer

    def _before_step(self, scaler: Any, optimizer: Any) -> int:
        self._close_awaited()
        self._add_event("scaler_step", scaler, optimizer)
        window = self._windows.window_of(self._represented(optimizer))
        if window.optimizer is not optimizer:
            self._thread.awaited[id(window)] = scaler, window, window.steps
        return window.steps

    def _after_step(self, optimizer: Any, steps: int | None) -> None:
        """Close the window if the scaler skipped the step: then no optimizer hook ran."""
        if self._thread.awaited or not self._patches:
            return
        if self._windows.window_of(optimizer).steps == steps:
            self._close_skipped(optimizer)

    def _close_awaited(self) -> None:
        """Close the windows whose optimizers did not step after the scaler's step: it skipped."""
        awaited, self._thread.awaited = self._thread.awaited, {}
        for _, window, steps in awaited.values():
            if window.steps == steps and window.optimizer is not None and self._patches:
                self._close_skipped(window.optimizer)

    def _wrap_update(self, original: Any) -> Any:
        def update(scaler: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            if scaler.is_enabled():
                self.run_guarded(self._note_update, scaler)
            return result

        return update

    def _wrap_load(self, original: Any) -> Any:
        def load_state_dict(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            self.run_guarded(self._loaded.add, scaler)
            return result

        return load_state_dict

    def _note_update(self, scaler: Any) -> None:
        self._close_awaited()
        self._add_event("update", scaler)
        self._thread.unused.clear()

    def _ordinal_of(self, scaler: Any) -> int:
        """1, 2, ... in the order of first use; a second scaler is an event."""
        ordinal = self._ordinals.get(scaler)
        if ordinal is None:
            self._count += 1
            ordinal = self._ordinals[scaler] = self._count
            if self._count > 1:
                self._windows.add_event("new_scaler")
        return ordinal

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Attach the scale if a root is a scaled loss, or computed from such losses alone."""
        products = self._thread.products
        if not products:
            return
        scaled: list[NodeKey] = []
        for root in roots:
            node = getattr(root, "grad_fn", None) if isinstance(root, torch.Tensor) else root.node
            scaled += () if node is None else _products_below(node, products)
        if scaled:
            micro_batch.scale, micro_batch.scaler, _ = products[scaled[-1]]
            micro_batch.scaling = frozenset(number for number, _ in scaled)
            self._thread.unused.difference_update(scaled)
        elif not all(products[key].single for key in self._thread.unused):
            micro_batch.missing["scale"] = OF_SEVERAL_VALUES

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Copy the state of the scaler. A fused optimizer divides by ``grad_scale`` itself."""
        if self._compiled:
            step.missing.update(dict.fromkeys(self.facts, COMPILED))
        awaited, *_ = self._thread.awaited.get(id(window), (None,))
        scaler = self._thread.stepping or awaited
        if scaler is not None and scaler._scale is not None:
            tracker = scaler._growth_tracker
            step.scaler = OpenScaler(
                self._ordinal_of(scaler),
                Deferred(scaler._scale, volatile=True),
                None if tracker is None else Deferred(tracker, volatile=True),
                scaler in self._loaded,
                bool(self._thread.unused),
            )
        if scaler is not None and self._gets_the_scaler(window.optimizer):
            stage = _state_of(scaler, window.optimizer).get("stage")
            if getattr(stage, "name", None) == "READY":  # the loop has not unscaled them
                step.grad_scale = Deferred(scaler._scale, volatile=True)
            return
        scale = getattr(window.optimizer, "grad_scale", None)
        if isinstance(scale, torch.Tensor):
            step.grad_scale = Deferred(scale, volatile=True)
            found_inf = getattr(window.optimizer, "found_inf", None)
            if isinstance(found_inf, torch.Tensor):
                step.found_inf = Deferred(found_inf, volatile=True)

    def step_ends(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Copy the check for infinities if the optimizer gets the scaler and skips by itself."""
        scaler = self._thread.stepping
        if scaler is None or not self._gets_the_scaler(window.optimizer):
            return
        infinite = _state_of(scaler, window.optimizer).get("found_inf_per_device", {})
        if len(infinite) == 1:
            step.found_inf = Deferred(next(iter(infinite.values())), volatile=True)

    def _gets_the_scaler(self, optimizer: Any) -> bool:
        """Whether the scaler passes itself to the step, which then unscales and skips.

        PyTorch deprecates this form of fused optimizers, which has no ``grad_scale``.
        """
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            return False
        if optimizer not in self._takes_scaler:
            parameters = inspect.signature(optimizer.step).parameters
            self._takes_scaler[optimizer] = "grad_scaler" in parameters
        return self._takes_scaler[optimizer]


def _state_of(scaler: Any, optimizer: Any) -> dict[str, Any]:
    """What the scaler notes of an optimizer: whether it is unscaled, and the infinities found."""
    state: dict[str, Any] = scaler._per_optimizer_states.get(id(optimizer), {})
    return state


def _key(node: Any) -> NodeKey:
    number = sequence_number(node)
    return -1 if number is None else number, node.name()


def _products_below(root: Any, products: dict[NodeKey, _Product]) -> list[NodeKey]:
    """The scaled losses that a root is computed from; none if something else is in it, too.

    The loop may divide them, or add several: ``(scaler.scale(loss) / K).backward()``.
    """
    if _key(root) in products:
        return [_key(root)]
    below: list[NodeKey] = []
    nodes = [root]
    for _ in range(MOST_NODES):
        if not nodes:
            return below
        node = nodes.pop()
        key = _key(node)
        product = products.get(key)
        if product is not None and product.single:
            below.append(key)
            continue
        inputs = graph_inputs(node)
        if key[1] not in PASSES_ON or not inputs:
            return []
        if key[1] in SCALINGS and (len(inputs) > 1 or inputs[0][0] != 0):
            return []  # a product of two losses, or the inverse of one
        nodes += [edge.node for _, edge in inputs]
    return []
