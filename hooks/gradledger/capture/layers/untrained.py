"""Follows the parameters that have had no gradient up to now, or one of exactly 0.

All parameters are followed at first. Those with a gradient drop out as soon as its norm has been
read, without waiting, so that usually none is left after the first step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain, local_part

MOST_UNREAD = 16  # steps whose norms were not read yet; of more, what is followed is not known

Norms = tuple[list[int], Deferred]  # of which parameters, by ``id``


class Untrained:
    """The parameters of one optimizer that were never trained, at all observed steps."""

    def __init__(self) -> None:
        self.observed = 0
        self._followed: dict[int, TensorWeakRef] = {}
        self._unread: deque[Norms] = deque()

    def start(self, parameters: list[Any], state: Any) -> None:
        """Follow these. One with state of the optimizer had a gradient before this process."""
        self._followed = {id(p): TensorWeakRef(p) for p in parameters if p not in state}

    def add(self, keys: list[int], norms: Deferred) -> None:
        """Gradients of this step, as norms that are read later."""
        self._drop_trained()
        if not self._followed.keys().isdisjoint(keys):
            self._unread.append((keys, norms))

    def gradients(self) -> tuple[list[int], list[Any]]:
        """The gradients that the followed parameters have now."""
        self._drop_trained()
        keys, gradients = [], []
        for key, reference in list(self._followed.items()):
            parameter = reference()
            gradient = None if parameter is None else parameter.grad
            if parameter is None or not _is_readable(gradient):
                del self._followed[key]
            elif gradient is not None:
                keys.append(key)
                gradients.append(gradient)
        return keys, gradients

    def among(self, parameters: list[Any]) -> Callable[[], set[int]]:
        """Reads later which of these are untrained, as their positions."""
        followed = {
            id(p): position
            for position, p in enumerate(parameters)
            if id(p) in self._followed and self._followed[id(p)]() is p
        }
        unread = list(self._unread)

        def read() -> set[int]:
            trained = {key for norms in unread for key in _trained(norms)}
            return {position for key, position in followed.items() if key not in trained}

        return read

    def keys(self) -> set[int]:
        """The parameters that are followed, by ``id``, as far as their norms have been read."""
        return {key for key, reference in self._followed.items() if reference() is not None}

    def _drop_trained(self) -> None:
        """Take in the norms of earlier steps that can be read without waiting."""
        if len(self._unread) > MOST_UNREAD:
            self._followed.clear()
            self._unread.clear()
        while self._unread and (self._unread[0][1].has_no_copy or self._unread[0][1].ready):
            for key in _trained(self._unread.popleft()):
                self._followed.pop(key, None)


def _trained(norms: Norms) -> list[int]:
    """The parameters with a gradient other than 0; all, if it cannot be read."""
    keys, deferred = norms
    if deferred.has_no_copy:
        return keys
    return [key for key, norm in zip(keys, deferred.values(), strict=True) if norm != 0]


def _is_readable(gradient: Any) -> bool:
    if gradient is None:
        return True
    local = local_part(gradient)
    return is_plain(local) and local.layout is torch.strided and local.numel() > 0
