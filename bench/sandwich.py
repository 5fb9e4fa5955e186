"""The time that a training thread spends inside the hooks, measured from outside them.

One clock is installed below the hooks, before them, and one above, after them: the time between
the two is theirs, whatever they do inside. Hooks on autograd nodes, which run in the middle of a
backward, are not included; the difference between whole steps includes them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import clip_grad
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

PATCHED = ((torch.autograd, "backward"), (clip_grad, "_clip_grads_with_norm_"))


class Sandwich:
    """Clocks below and above the hooks. ``take`` gives the seconds between them."""

    def __init__(self) -> None:
        self._below: list[float] = []
        self._began = 0.0
        self._spent = 0.0
        self._undo: list[Callable[[], None]] = []
        for owner, name in PATCHED:
            setattr(owner, name, self._inner(getattr(owner, name)))
        register_optimizer_step_pre_hook(self._pause)
        register_optimizer_step_post_hook(self._start)

    def close(self) -> None:
        """Put the clocks above; the hooks are in place."""
        for owner, name in PATCHED:
            hooked = getattr(owner, name)
            setattr(owner, name, self._outer(hooked))
            self._undo.append(functools.partial(setattr, owner, name, hooked))
        handles = (
            register_optimizer_step_pre_hook(self._resume),
            register_optimizer_step_post_hook(self._stop),
        )
        self._undo += [handle.remove for handle in handles]

    def open(self) -> None:
        """Take them away again, before the hooks go."""
        while self._undo:
            self._undo.pop()()

    def take(self) -> float:
        """Seconds since the last call."""
        spent, self._spent = self._spent, 0.0
        return spent

    def _inner(self, original: Any) -> Any:
        def below(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return original(*args, **kwargs)
            finally:
                self._below.append(time.thread_time() - began)

        return below

    def _outer(self, hooked: Any) -> Any:
        def above(*args: Any, **kwargs: Any) -> Any:
            self._below.clear()
            began = time.thread_time()
            try:
                return hooked(*args, **kwargs)
            finally:
                self._spent += time.thread_time() - began - sum(self._below)

        return above

    # The optimizer calls hooks in the order of their registration: below, the hooks, above.

    def _pause(self, *about: Any) -> None:
        self._began = time.thread_time()

    def _resume(self, *about: Any) -> None:
        self._spent += time.thread_time() - self._began

    _start, _stop = _pause, _resume
