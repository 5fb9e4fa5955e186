"""Copies the gradients of this rank alone, before hooks combine them with those of other ranks.

DDP overwrites ``.grad`` with the result of its comm hook, inside backward. Just before that, a
parameter's gradient is this rank's own: everything accumulated so far, not yet combined.

A loop without a wrapper may combine each gradient in a hook of its parameter: the one that arrives,
or the accumulated one. Before these hooks, the gradients of the window's backwards are added up.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch.utils.weak import WeakIdKeyDictionary

from gradledger import guard
from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.capture.gradient_probe import GradientProbe
from gradledger.capture.isolation import isolated, local_part, never_compile
from gradledger.observers.ranks.process_groups import world_size

if TYPE_CHECKING:
    from gradledger.capture.open_records import OpenStep
    from gradledger.capture.windows import OptimizerWindow

DEFAULT_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
COMPRESSING = ("fp16_compress_hook", "bf16_compress_hook")
AVERAGING = ("allreduce_hook", *COMPRESSING)
ELSEWHERE = (
    "DDP has a comm hook and a process group other than the default one: whether the hook combines "
    "gradients with those of other processes, as torchft's does, and how, is not known"
)
HALF_BYTES = 2  # of an element in fp16 or bf16


def has_custom_hook(wrappers: Iterable[Any]) -> bool:
    """Whether a DDP model has a comm hook that is not one of PyTorch's averaging hooks.

    Raises AttributeError if DDP does not list its hooks in ``_comm_hooks``: assuming that there is
    none would be a guess.
    """
    averaging = _default_hooks(AVERAGING)
    hooks = [hook for ddp in wrappers for hook, _ in ddp._comm_hooks]
    return any(hook not in averaging for hook in hooks)


def trains_alone(step: OpenStep, wrappers: Iterable[Any]) -> bool:
    """Whether there is one rank. What its comm hooks exchange beyond that is noted as missing."""
    if world_size() > 1:
        return False
    apart = [ddp for ddp in wrappers if ddp.process_group is not torch.distributed.group.WORLD]
    if has_custom_hook(apart):
        step.missing["sync"] = ELSEWHERE
    return True


def _default_hooks(names: Iterable[str]) -> list[Any]:
    """Comm hooks of PyTorch by name; None for one that is not there, or not imported."""
    module = sys.modules.get(DEFAULT_HOOKS)
    return [getattr(module, name, None) for name in names]


def sent_bytes(wrappers: Iterable[Any], parameters: Iterable[Any]) -> int | None:
    """Bytes of these parameters' gradients as DDP sends them once; None if a hook decides that."""
    hooks = [[hook for hook, _ in getattr(ddp, "_comm_hooks", [(None, None)])] for ddp in wrappers]
    averaging, compressing = _default_hooks(AVERAGING), _default_hooks(COMPRESSING)
    if any(hook is None or hook not in averaging for of_one in hooks for hook in of_one):
        return None
    halved = {any(hook in compressing for hook in of_one) for of_one in hooks}
    if len(halved) > 1:
        return None
    total = 0
    for local in map(local_part, parameters):
        size: int = local.element_size()
        total += local.numel() * (min(size, HALF_BYTES) if True in halved else size)
    return total


def are_hooked(parameters: Iterable[Any]) -> bool:
    """Whether hooks (``Tensor.register_hook``) may change the gradient of each parameter."""
    return all(bool(parameter._backward_hooks) for parameter in parameters)


def have_own_hooks(parameters: Iterable[Any]) -> bool:
    """Whether the script has hooks on parameters that PyTorch calls once a gradient accumulates.

    Not those of PyTorch and of this package.
    """
    return any(
        not _module_of(hook).startswith(("torch.", "gradledger."))
        for parameter in parameters
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
    )


def _module_of(hook: Any) -> str:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return getattr(hook, "__module__", None) or ""


class LocalGradients:
    """Copies coordinates of probed parameters each time their gradient accumulates."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._handles: Any = WeakIdKeyDictionary()  # by parameter
        self._copies: Any = WeakIdKeyDictionary()  # by parameter
        self.from_begin = False  # whether the last copies that were taken are of a whole window
        self._watched: WeakSet[OptimizerWindow] = WeakSet()  # since before their window began

    def watch(self, window: OptimizerWindow, on_failure: guard.Handler) -> None:
        """Copy the gradients of this optimizer once accumulated, from the next backward on."""
        for parameter in self._unwatched(window):
            around = guard.fail_open(f"observer {self._owner}", on_failure)
            hook = parameter.register_post_accumulate_grad_hook(around(self._copy_gradient))
            self._handles[parameter] = hook

    def watch_arriving(self, window: OptimizerWindow, on_failure: guard.Handler) -> None:
        """Copy what the gradients will be, before any hook that runs after they accumulate."""
        for parameter in self._unwatched(window):
            around = guard.fail_open(f"observer {self._owner}", on_failure)
            copy = around(self._copy_arriving)
            reference = weakref.ref(parameter)  # the hook must not keep its parameter alive
            handle = parameter.register_hook(functools.partial(copy, reference, window.probe))
            self._handles[parameter] = handle
            call_first(parameter, handle)

    def _unwatched(self, window: OptimizerWindow) -> list[Any]:
        probed = [p for p in window.probed_parameters if p not in self._handles]
        return [p for p in probed if p.requires_grad]  # it may have been frozen since

    def take(self, window: OptimizerWindow) -> Deferred | None:
        """The copies from the last backward, in the order of ``OptimizerWindow.sample``.

        None if one is missing. The copies are removed: the next window must make its own.
        ``from_begin`` states whether they are of the whole window.
        """
        self.from_begin = window in self._watched
        self._watched.add(window)
        copies = self._of_present(window)
        for parameter in window.probed_parameters:
            self._copies.pop(parameter, None)
        return copies

    def so_far(self, window: OptimizerWindow) -> Deferred | None:
        """The same inside a window; None, too, if not all of its backwards were watched."""
        return self._of_present(window) if window in self._watched else None

    def _of_present(self, window: OptimizerWindow) -> Deferred | None:
        gradient_of = window.probe.gradient_of
        present = [p for p in window.probed_parameters if gradient_of(p) is not None]
        copies = [self._copies[p] for p in present if p in self._copies]
        return gradient_probe.copy_coordinates(copies) if len(copies) == len(present) else None

    def release(self) -> None:
        """Remove all hooks and copies."""
        for handle in list(self._handles.values()):
            handle.remove()
        self._handles.clear()
        self._copies.clear()
        self._watched.clear()

    @never_compile
    def _copy_gradient(self, parameter: Any) -> None:
        with isolated():
            view = gradient_probe.coordinates(parameter.grad)
            if view is not None:
                self._copies[parameter] = view.clone()  # DDP is about to overwrite the gradient

    @never_compile
    def _copy_arriving(self, reference: Any, probe: GradientProbe, arriving: Any) -> None:
        """The hook's result is None: the gradient that arrives is left as it is."""
        parameter = reference()
        if parameter is None:
            return
        with isolated():
            view = gradient_probe.coordinates(arriving)
            if view is not None:
                before = self._own_so_far(parameter, probe)
                self._copies[parameter] = view.clone() if before is None else before + view

    def _own_so_far(self, parameter: Any, probe: GradientProbe) -> Any:
        """What arrived earlier in the window; before the first copy of it, what has accumulated."""
        accumulated = probe.gradient_of(parameter)
        if accumulated is None:
            return None
        own = self._copies.get(parameter)
        return gradient_probe.coordinates(accumulated) if own is None else own


def call_first(parameter: Any, handle: Any) -> None:
    """Call this hook before those that the script has registered: one of them may communicate."""
    hooks = parameter._backward_hooks  # PyTorch calls them in the order of the dictionary
    own, others = hooks.pop(handle.id), dict(hooks)
    hooks.clear()
    hooks[handle.id] = own
    hooks.update(others)


def join_of(joinable: Any) -> Any:
    """The configuration of the `Join` context that it is in; None if it is in none."""
    config = getattr(joinable, "_join_config", None)
    return config if getattr(config, "enable", False) else None


def divides_by(module: Any, window: OptimizerWindow) -> str | None:
    """What a DDP model that is in a `Join` context divides the sum of the gradients by.

    None if it holds no parameter of the window's optimizer. A comm hook divides instead of DDP, and
    PyTorch's divide by all ranks.
    """
    if join_of(module) is None:
        return None
    if {id(p) for p in window.parameters()}.isdisjoint(id(p) for p in module.parameters()):
        return None
    if getattr(module, "_comm_hooks", None):
        return "all"
    return "all" if getattr(module, "_divide_by_initial_world_size", True) else "active"
