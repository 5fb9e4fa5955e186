"""Whether reading a saved tensor of an autograd node would call code of the script.

Activation checkpointing and offloading hold saved tensors by hooks. To read such a tensor would run
a part of the forward again, and break the script's backward.

PyTorch 2.10 and later report the hook of a saved tensor. For older versions, ``entered`` and
``left`` note where ``torch.autograd.graph.saved_tensors_hooks`` is active. A node has no hooks if
it was created after the last of these scopes: the nodes of a thread are numbered. (A hook that the
script registers at a single saved tensor cannot be noticed.)
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

from gradledger.capture.isolation import is_plain, never_compile

_autograd: Any = torch._C._autograd
_next_node: Callable[[], int] | None = getattr(_autograd, "_get_sequence_nr", None)
_top_hooks: Callable[[bool], Any] | None = getattr(
    _autograd, "_top_saved_tensors_default_hooks", None
)
_graph_task: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)

reported = hasattr(_autograd.SavedTensor, "unpack_hook")
observable = _next_node is not None and _graph_task is not None

_open: dict[int, int] = {}  # by thread: scopes that are active
_free_from: dict[int, int] = {}  # by thread: number of the first node after the last scope
_in_backward = False  # whether a scope was ever entered inside a backward


def begin() -> None:
    """From now on, every scope is noted; what this thread has created before is unknown."""
    global _in_backward
    _open.clear()
    _free_from.clear()
    _in_backward = False
    if _next_node is not None:
        _free_from[get_ident()] = _next_node()


@never_compile
def entered() -> None:
    """A scope has begun on this thread."""
    global _in_backward
    if _runs_backward():  # a checkpoint runs its forward again, on a thread of the engine
        _in_backward = True
    else:
        _open[get_ident()] = _open.get(get_ident(), 0) + 1


@never_compile
def left() -> None:
    """A scope has ended on this thread."""
    thread = get_ident()
    if _next_node is not None and not _runs_backward():
        _open[thread] = max(0, _open.get(thread, 0) - 1)
        _free_from[thread] = _next_node()


def may_be_active() -> bool:
    """Whether what is computed now may be saved by hooks of the script."""
    if _top_hooks is not None:
        return _top_hooks(True) is not None
    return not observable or any(_open.values())


def has_unpack_hook(node: Any, saved: Any) -> bool:
    """Whether reading a saved tensor of ``node`` calls code of the script; True if unknown."""
    if reported:
        return getattr(saved, "unpack_hook", saved) is not None
    return not observable or not _is_free(node)


def saved(node: Any, name: str) -> torch.Tensor | None:
    """The saved tensor; None if there is none that can be read, or a saved-tensor hook holds it."""
    raw = getattr(node, "_raw_saved_" + name, None)
    if raw is None or has_unpack_hook(node, raw):
        return None
    value: torch.Tensor | None = getattr(node, "_saved_" + name, None)
    return value if value is None or is_plain(value) else None


def saved_list(node: Any, name: str) -> list[torch.Tensor | None]:
    """The saved tensors of a list, such as of an index; empty if a saved-tensor hook holds one."""
    raw = getattr(node, "_raw_saved_" + name, ())
    if any(has_unpack_hook(node, each) for each in raw):
        return []
    values = getattr(node, "_saved_" + name, ())
    return [] if any(v is not None and not is_plain(v) for v in values) else [*values]


def _is_free(node: Any) -> bool:
    """Whether no scope was active when the node was created."""
    thread = get_ident()
    if any(_open.values()) or (_in_backward and _runs_backward()):
        return False
    if _open.keys() - {thread}:  # each thread numbers its own nodes
        return False
    return bool(node._sequence_nr() >= _free_from.get(thread, 0))


def _runs_backward() -> bool:
    return _graph_task is not None and _graph_task() != -1
