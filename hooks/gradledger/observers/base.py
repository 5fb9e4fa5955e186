"""The base of all observers. Each observes one thing, and is installed, removed and fails alone."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from types import CellType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gradledger import guard
from gradledger.capture.isolation import capturing, isolated, never_compile, skip_in_stacklevel
from gradledger.capture.open_records import OpenMicroBatch, OpenStep

if TYPE_CHECKING:
    from gradledger.capture.windows import OptimizerWindow

T = TypeVar("T")


class Patch:
    """Replaces one callable, and restores it.

    The owner is a module, a class, or a cell: the variable in which a decorated function holds its
    body. If other code has wrapped the replacement since, it stays, and only calls the original. A
    static or class method stays one, because Dynamo cannot trace a call of the descriptor.

    ``torch.compile`` traces a call of it as a call of the original: nothing of the hooks is in the
    graph, and a compiled call is not observed. ``compiled`` is called while Dynamo traces.

    ``virtual``: a method that pybind11 lets Python classes override, and that theirs may call. What
    calls the original must be named as it is, with the object as its first argument: by that,
    pybind11 (``get_type_override``) knows that the override has been called already, and would
    call it for ever otherwise. So ``wrap`` replaces such a method alone, without a wrapper.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        wrap: Callable[[Any], Any],
        compiled: Callable[[], None] = lambda: None,
        virtual: bool = False,
    ) -> None:
        self._owner, self._name = owner, name
        self._original = original = _attribute(owner, name)
        if original is None:
            raise AttributeError(f"{owner} has no {name}")
        # Dynamo of PyTorch 2.6 cannot trace a closure over an object of ours, but one over a list.
        self._active = active = [True]  # False: it only calls the original
        bound = type(original) if isinstance(original, (staticmethod, classmethod)) else None
        original = original.__func__ if bound else original
        wrapped, is_compiling = wrap(original), torch.compiler.is_compiling

        def traced() -> None:
            compiled()

        # The effect of torch.compiler.assume_constant_result, without importing all of
        # torch._dynamo: Dynamo calls the function once, while it traces, and adds nothing to the
        # graph.
        traced._dynamo_marked_constant = True  # type: ignore[attr-defined]

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                traced()
                return original(*args, **kwargs)
            return wrapped(*args, **kwargs) if active[0] else original(*args, **kwargs)

        if virtual:
            wrapped.__code__ = wrapped.__code__.replace(co_name=name)
            wrapper = functools.update_wrapper(wrapped, original)
        for function in {wrapper, wrapped}:
            never_compile(skip_in_stacklevel(function))
        never_compile(traced)
        self._wrapper: Any = wrapper if bound is None else bound(wrapper)
        setattr(owner, name, self._wrapper)

    def undo(self) -> None:
        """Restore the original. If that is not possible, only call it from now on."""
        self._active[0] = False
        self._replace(self._wrapper, self._original)

    def redo(self) -> None:
        """Replace it again, after ``undo``."""
        self._active[0] = True
        self._replace(self._original, self._wrapper)

    def _replace(self, current: Any, replacement: Any) -> None:
        if _attribute(self._owner, self._name) is current:
            setattr(self._owner, self._name, replacement)


def _attribute(owner: Any, name: str) -> Any:
    """What the owner itself holds under this name: not what it inherits, nor a bound method."""
    return owner.cell_contents if isinstance(owner, CellType) else owner.__dict__.get(name)


class Observer:
    """Fills some fields of the open records. If a method raises, the observer is switched off."""

    facts: tuple[str, ...] = ()  # fields that are missing if this observer fails

    def __init__(self) -> None:
        self._patches: list[Patch] = []
        self._pausable: list[Patch] = []  # patches that are removed while steps are skipped
        self._compiled: set[str] = set()  # patched names that Dynamo traced into a graph
        self.on_failure: guard.Handler = guard.report
        self.lock: Any = threading.RLock()  # the recorder's: several threads may train
        self._guard = guard.fail_open(
            self.title, lambda where, error: self.on_failure(where, error)
        )

    @property
    def title(self) -> str:
        """The observer's name in a message."""
        return f"observer {type(self).__name__}"

    @never_compile
    def run_guarded(self, body: Callable[..., T], *args: Any) -> T | None:
        """Run the observer's part of a wrapper; None if it failed, which the script never sees."""
        if not capturing():
            with self.lock, isolated(), self._guard:
                return body(*args)
        return None

    def install(self) -> None:
        """Install the hooks."""

    def uninstall(self) -> None:
        """Restore everything that ``install`` changed."""
        self._pausable.clear()
        while self._patches:
            self._patches.pop().undo()

    def patch(
        self,
        owner: Any,
        name: str,
        wrap: Callable[[Any], Any],
        always: bool = False,
        virtual: bool = False,
    ) -> None:
        """Replace an attribute until ``uninstall``; ``always``: also while steps are skipped."""
        patch = Patch(owner, name, wrap, functools.partial(self._compiled.add, name), virtual)
        self._patches.append(patch)
        if not always:
            self._pausable.append(patch)

    def pause(self) -> None:
        """Steps are skipped from now on: remove every hook that is not needed for that."""
        for patch in self._pausable:
            patch.undo()

    def resume(self, windows: list[OptimizerWindow]) -> None:
        """Steps are sampled again: forget what was observed before the pause."""
        for patch in self._pausable:
            patch.redo()

    def optimizer_created(self) -> None:
        """The script has created an optimizer, or an older one is watched from now on."""

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """An outermost backward is about to start from ``roots``."""

    def backward_nested(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Inside it, another one starts from ``roots``: reentrant checkpointing."""

    def backward_ends(self, micro_batch: OpenMicroBatch, reached: list[OptimizerWindow]) -> None:
        """It has ended; it added to gradients of the optimizers of the ``reached`` windows."""

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """The optimizer is about to apply its gradients; its ``window`` is already the next one."""

    def step_ends(self, step: OpenStep, window: OptimizerWindow) -> None:
        """The optimizer has applied them."""


class Observers:
    """The observers of a process. One that raises is switched off; the others continue."""

    def __init__(self, observers: Iterable[Observer], lock: Any) -> None:
        """``lock`` is held while one of them runs."""
        self._observers = list(observers)
        for observer in self._observers:
            observer.on_failure = functools.partial(self._switch_off, observer)
            observer.lock = lock
        self.facts = tuple(fact for observer in self._observers for fact in observer.facts)
        self.failed: dict[str, str] = {}  # fact -> reason, of those that were switched off
        self._listeners: dict[str, list[tuple[Observer, Callable[..., None]]]] = {}

    def __iter__(self) -> Iterator[Observer]:
        return iter(self._observers)

    def notify(self, method: str, *args: Any) -> None:
        """Call a method of all observers that implement it."""
        listeners = self._listeners.get(method)
        if listeners is None:
            listeners = self._listeners[method] = self._listeners_of(method)
        for observer, listener in listeners:
            try:
                listener(*args)
            except Exception as error:
                self._switch_off(observer, observer.title, error)

    def _listeners_of(self, method: str) -> list[tuple[Observer, Callable[..., None]]]:
        """The observers that implement a method; most implement few."""
        base = getattr(Observer, method)
        always = method in ("install", "uninstall", "pause", "resume")  # the base implements these
        listening = [o for o in self._observers if always or getattr(type(o), method) is not base]
        return [(observer, getattr(observer, method)) for observer in listening]

    def _switch_off(self, observer: Observer, where: str, error: Exception) -> None:
        guard.report(where, error)
        if observer not in self._observers:
            return
        self._observers.remove(observer)
        self._listeners = {}
        reason = f"the {where} failed: {type(error).__name__}"
        self.failed.update(dict.fromkeys(observer.facts, reason))
        with guard.fail_open(where):
            observer.uninstall()
