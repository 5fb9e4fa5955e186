"""How many examples a property is tried with."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """``count``, or as small a share of it as the profile's is of the usual 100."""
    return max(1, count * settings().max_examples // 100)
