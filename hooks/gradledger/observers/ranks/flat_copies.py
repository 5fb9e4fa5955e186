"""Recognises copies of a parameter by their values, such as flat ones of several parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

RUN = 8  # numbers in sequence by which a part of a copy is recognised
MOST_CANDIDATES = 8  # where such a sequence may begin


def find_copies(masters: Sequence[Any], leaf: Any) -> list[tuple[Any, int]]:
    """The parameters that have the values of a leaf, or some of them, and where it begins there.

    That is negative if the first of its values are not in it.
    """
    values = leaf.detach().reshape(-1)
    result = []
    for master in masters:
        start = _start_of(values, master.detach().reshape(-1).to(values.dtype))
        if start is not None:
            result.append((master, start))
    return result


def _start_of(values: torch.Tensor, copies: torch.Tensor) -> int | None:
    size, length = len(values), len(copies)
    if size < RUN:
        return None
    for begin in dict.fromkeys((0, (size - RUN) // 3, (size - RUN) * 2 // 3, size - RUN)):
        run = values[begin : begin + RUN]
        if len(run.unique()) < RUN // 2:
            continue  # such as zeros
        for at in (copies == run[0]).nonzero().flatten()[:MOST_CANDIDATES].tolist():
            start = int(at) - begin
            low, high = max(0, start), min(length, start + size)
            same = torch.equal(copies[low:high], values[low - start : high - start])
            if high - low >= RUN and same:
                return start
    return None
