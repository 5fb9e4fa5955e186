"""What a loss function of a known library was called with, by its autograd node."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from gradledger.capture.isolation import is_plain
from gradledger.records import Reduction

CHANGED = "the targets were changed in place after the loss was computed"


@dataclass(slots=True)
class Call:
    """One call of a loss function, such as a cross entropy against class indices.

    The weight of a token is ``scale`` times the gradient that arrives at the result, divided by
    the number of tokens if the reduction is a mean.
    """

    reduction: Reduction
    target: torch.Tensor | None = None  # class indices, any shape
    ignored: int | None = None  # the class whose tokens do not count
    tokens: torch.Tensor | int | None = None  # that count, if the targets do not show it
    cross_entropy: bool = True  # or another loss, whose tokens may be pairs or sequences
    class_weights: torch.Tensor | None = None  # one for each class
    scale: torch.Tensor | float = 1.0
    unknown: str | None = None  # why its weights cannot be stated
    _version: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._version = _version(self.target)

    @property
    def readable_target(self) -> torch.Tensor | None:
        """The targets, if they still are those of the call and hold values."""
        target = self.target
        if target is None or not is_plain(target) or _version(target) != self._version:
            return None
        return target

    @property
    def why_unreadable(self) -> str:
        """Why ``readable_target`` is None."""
        plain = self.target is None or is_plain(self.target)
        return CHANGED if plain else f"the targets are a {type(self.target).__name__}"

    @property
    def valid(self) -> torch.Tensor | None:
        """Where the targets count; None if that is not known."""
        target = self.readable_target
        if target is None or self.ignored is None:
            return None
        return target != self.ignored


_calls: weakref.WeakKeyDictionary[Any, Call] = weakref.WeakKeyDictionary()
unknown_signatures: dict[str, str] = {}  # why an adapter does not fit, by the name of the node


def remember(node: Any, call: Call) -> None:
    """Note the call that created a node, as long as the node lives."""
    _calls[node] = call


def call_of(node: Any) -> Call | None:
    """The call that created a node; None if no adapter knows it."""
    try:
        return _calls.get(node)
    except TypeError:  # nodes of PyTorch itself have no weak references
        return None


def _version(tensor: torch.Tensor | None) -> int | None:
    if tensor is None or tensor.is_inference():
        return None
    return int(tensor._version)
