"""How numbers, times and names are written for people: the filters of the templates."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from urllib.parse import quote

NOT_MEASURED = "\N{EN DASH}"
_TIMES = "\N{MULTIPLICATION SIGN}"
_MINUS = "\N{MINUS SIGN}"
_LAST_MOMENT = 253_402_300_799.0  # the end of the year 9999
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(value: float | None) -> str:
    """A whole number: grouped while it is readable, prefixed beyond."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return figure(value)
    if abs(value) < 100_000:
        return f"{value:,.0f}"
    size, prefix = next((s, p) for s, p in _PREFIXES if abs(value) >= s)
    return f"{value / size:.3g} {prefix}"


def listed(value: object) -> str:
    """Whatever a script said of its setting: a list as people write one."""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def figure(value: float | None, digits: int = 4) -> str:
    """A measured number, as many digits as it deserves."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: f"{_MINUS}∞"}.get(value, "NaN")
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return _plain(value, digits)
    return f"{value:.{digits - 1}g}"


def _plain(value: float, digits: int) -> str:
    whole = len(str(int(abs(value))))
    text = f"{value:,.{max(digits - whole, 0)}f}" if abs(value) >= 1 else f"{value:.{digits}g}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float | None) -> str:
    """A share of one."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return figure(value)
    hundred = abs(value) * 100
    digits = 0 if hundred >= 99.95 or hundred == 0 else 1 if hundred >= 1 else 2
    return f"{value * 100:.{digits}f} %"


def times(value: float | None) -> str:
    """A factor, 1 being fair."""
    return NOT_MEASURED if value is None else f"{figure(value, 3)} {_TIMES}"


def iso(moment: float) -> str:
    """Seconds since the epoch, for the datetime attribute."""
    return _moment(moment).isoformat(timespec="seconds")


def clock(moment: float) -> str:
    """Seconds since the epoch, in the words shown before a script makes them relative."""
    return _moment(moment).strftime("%Y-%m-%d %H:%M UTC")


def _moment(moment: float) -> datetime:
    """The nearest moment that has a date: a training process may report any number of seconds."""
    return datetime.fromtimestamp(min(max(moment, 0.0), _LAST_MOMENT), timezone.utc)


def plural(number: int, word: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count(number)} {word}" if number == 1 else f"{count(number)} {word}s"


def segment(text: str) -> str:
    """One segment of a path, slashes included."""
    return quote(text, safe="")
