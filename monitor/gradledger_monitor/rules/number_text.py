"""One style for the numbers of a finding's text (pure)."""

from __future__ import annotations


def significant(value: float) -> str:
    """Four significant digits; whole and with thousands separators from 10,000 on.

    Very small values stay in scientific notation: 0.25, 1,024, 65,536, 1.526e-05.
    """
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e15 else f"{value:,.4g}"
