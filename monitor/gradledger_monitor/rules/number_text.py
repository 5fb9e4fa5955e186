"""One style for the numbers of a finding's text (pure)."""

from __future__ import annotations

_ROUNDS_TO_ZERO = 0.005  # of a percentage with two decimals


def significant(value: float) -> str:
    """Four significant digits; from 10,000 to 1,000,000,000 a whole number with separators.

    Other values are in scientific notation: 0.25, 1,024, 65,536, 1.526e-05, 3.47e+09.
    """
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e9 else f"{value:,.4g}"


def times(ratio: float) -> str:
    """By which factor one thing is more than another: ``2.7 times``, ``1.05 times``."""
    if ratio >= 10_000:
        return f"{significant(ratio)} times"
    return f"{ratio:,.1f} times" if ratio >= 1.1 else f"{ratio:.3g} times"


def percent(share: float) -> str:
    """A fraction of 1 as a percentage: ``28.3%``; ``0%`` if two decimals would be ``0.00%``."""
    size = abs(share) * 100
    if size < _ROUNDS_TO_ZERO:
        return "0%"
    digits = 0 if size >= 99.95 else 1 if size >= 1 else 2 if size >= 0.1 else 3
    return f"{share * 100:.{digits}f}%"


def data_size(size: float) -> str:
    """A number of bytes with a decimal unit: ``512 B``, ``3.0 MB``, ``2.4 GB``."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= limit:
            return f"{size / limit:,.1f} {unit}"
    return f"{size:,.0f} B"


def counted(number: int, noun: str) -> str:
    """A number and what it counts: ``1 token``, ``4 micro-batches``."""
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{ending}"
