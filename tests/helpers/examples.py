"""How many examples a property is tried with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

Value = TypeVar("Value")


def examples(count: int) -> int:
    """``count``, or as small a share of it as the profile's is of the usual 100."""
    return max(1, count * settings().max_examples // 100)


def share(values: Sequence[Value], offset: int) -> Sequence[Value]:
    """All values, or as small a share of them as the profile's of its examples.

    Which ones depends on the offset, so that tests with others try them all together.
    """
    every = max(1, 100 // settings().max_examples)
    return values[offset % every :: every]
