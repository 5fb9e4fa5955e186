"""What every observer is: one thing observed, installed and removed alone, failing alone."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gradledger import guard
from gradledger.capture.isolation import isolated, never_compile, uncounted
from gradledger.capture.open_records import OpenMicroBatch, OpenStep

if TYPE_CHECKING:
    from gradledger.capture.windows import Track

T = TypeVar("T")


class Patch:
    """One callable replaced, and put back. Where someone has wrapped it since, it goes passive.

    ``torch.compile`` traces a call of it as a call of the original: nothing of ours is in the
    graph. What a compiled call does is then out of sight; ``compiled`` is called while tracing.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        wrap: Callable[[Any], Any],
        compiled: Callable[[], None] = lambda: None,
    ) -> None:
        self._owner, self._name = owner, name
        self._original = original = owner.__dict__[name]
        self._active = True  # or it only calls the original
        wrapped, is_compiling = wrap(original), torch.compiler.is_compiling

        def traced() -> None:
            compiled()

        # What torch.compiler.assume_constant_result sets, without importing all of torch._dynamo:
        # Dynamo calls the function once, while it traces, and puts nothing into the graph.
        traced._dynamo_marked_constant = True  # type: ignore[attr-defined]

        @functools.wraps(original)
        def ours(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                traced()
                return original(*args, **kwargs)
            return wrapped(*args, **kwargs) if self._active else original(*args, **kwargs)

        for function in (ours, wrapped):
            never_compile(uncounted(function))
        never_compile(traced)
        self._ours = ours
        setattr(owner, name, ours)

    def undo(self) -> None:
        """Restore the original, or at least do nothing but call it from now on."""
        self._active = False
        self._replace(self._ours, self._original)

    def redo(self) -> None:
        """After ``undo``: as it was."""
        self._active = True
        self._replace(self._original, self._ours)

    def _replace(self, there: Any, by: Any) -> None:
        if self._owner.__dict__.get(self._name) is there:
            setattr(self._owner, self._name, by)


class Observer:
    """Fills some fields of the open records. A raising method switches the observer off."""

    facts: tuple[str, ...] = ()  # fields that go missing when this observer fails

    def __init__(self) -> None:
        self._patches: list[Patch] = []
        self._resting: list[Patch] = []  # those that may be left out while steps only pass
        self._compiled: set[str] = set()  # what was traced into a compiled function
        self.failed: guard.Handler = guard.report  # what becomes of an observer that raised
        self.lock: Any = threading.RLock()  # the recorder's: several threads may train
        self._guard = guard.fail_open(self.title, lambda where, error: self.failed(where, error))

    @property
    def title(self) -> str:
        """How the observer is called in a message."""
        return f"observer {type(self).__name__}"

    @never_compile
    def safely(self, body: Callable[..., T], *args: Any) -> T | None:
        """Run the part of a wrapper that is ours: it may fail, the script must not notice."""
        with self.lock, isolated(), self._guard:
            return body(*args)
        return None

    def install(self) -> None:
        """Put the hooks in place."""

    def uninstall(self) -> None:
        """Restore everything that ``install`` changed."""
        self._resting.clear()
        while self._patches:
            self._patches.pop().undo()

    def patch(
        self, owner: Any, name: str, wrap: Callable[[Any], Any], always: bool = False
    ) -> None:
        """Replace an attribute until ``uninstall``; ``always``: also while steps only pass."""
        patch = Patch(owner, name, wrap, functools.partial(self._compiled.add, name))
        self._patches.append(patch)
        if not always:
            self._resting.append(patch)

    def rest(self) -> None:
        """Steps only pass from now on: cost nothing."""
        for patch in self._resting:
            patch.undo()

    def wake(self, tracks: list[Track]) -> None:
        """From now on all is watched again: what was seen before is old."""
        for patch in self._resting:
            patch.redo()

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """An outermost backward is about to start from ``roots``."""

    def backward_nested(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Inside it, another one starts from ``roots``: reentrant checkpointing."""

    def backward_ends(self, micro_batch: OpenMicroBatch, touched: list[Track]) -> None:
        """It has ended; ``touched`` are the optimizers whose gradients it added to."""

    def step_begins(self, step: OpenStep, track: Track) -> None:
        """The optimizer of ``track`` is about to apply its gradients."""

    def step_ends(self, step: OpenStep, track: Track) -> None:
        """It has applied them."""
