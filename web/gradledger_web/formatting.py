"""How numbers, times and names are formatted for people: on pages, in terminals and in reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone
from urllib.parse import quote

from gradledger_monitor.common.clock import EARLIEST_KNOWN
from gradledger_monitor.rules import number_text

UNKNOWN_TIME = "at an unknown time"
NOT_MEASURED = "\N{EN DASH}"
_TIMES = "\N{MULTIPLICATION SIGN}"
_MINUS = "\N{MINUS SIGN}"
_LATEST_DATE = 253_402_300_799.0  # the last second of the year 9999
_PREFIXES = ("", "k", "M", "G", "T")
_UNGROUPED_LIMIT = 100_000  # smaller counts are written in full


def count(value: float | None) -> str:
    """A whole number: ``1,984``; from 100,000 on with a prefix: ``392k``, ``1.2M``."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return figure(value)
    if abs(value) < _UNGROUPED_LIMIT:
        return f"{value:,.0f}"
    return "".join(_scaled(value))


def quantity(value: float | None) -> str:
    """An amount that may be a fraction, such as a mean or a sum of class weights: ``39.7``."""
    if value is None or abs(value) >= 100 or value == int(value):
        return count(value)
    return figure(value, 3)


def sentence(text: str) -> str:
    """A phrase as the beginning of a sentence: ``Cross entropy``."""
    return f"{text[:1].upper()}{text[1:]}"


def finding_anchor(rule: str, optimizer: int) -> str:
    """The id of a finding's element on the page of its run."""
    return f"finding-{rule}" + (f"-{optimizer}" if optimizer else "")


def rank_names(ranks: Sequence[int], most: int = 8) -> str:
    """``rank 3``; ``ranks 0, 1 and 2``; of many, the first ones and how many more there are."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > most:
        return f"ranks {', '.join(map(str, ranks[:most]))} and {len(ranks) - most} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def byte_size(size: float) -> str:
    """A number of bytes: ``2.4 GB``, with decimal prefixes."""
    number, prefix = _scaled(size)
    return f"{number} {prefix}B"


def _scaled(value: float) -> tuple[str, str]:
    """Three digits and the SI prefix: 999,999 is 1M, not 1000k."""
    rounded = float(f"{value:.3g}")
    if math.isinf(rounded):  # the largest floats
        rounded = value
    order = min(int(math.log10(max(abs(rounded), 1))) // 3, len(_PREFIXES) - 1)
    return f"{rounded / 1000**order:.6g}", _PREFIXES[order]


def plural(number: float, noun: str) -> str:
    """``1 step``, ``2 steps``, ``120k steps``."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {_plural_of(noun)}"


def _plural_of(noun: str) -> str:
    return f"{noun}es" if noun.endswith(("ch", "sh", "s", "x")) else f"{noun}s"


def joined(value: object) -> str:
    """A value from a script's configuration: the items of a list, separated by commas."""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def figure(value: float | None, digits: int = 4) -> str:
    """A measured number with ``digits`` significant digits."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: f"{_MINUS}∞"}.get(value, "NaN")
    if value == 0 or 1e-4 <= abs(value) < 1e9:
        return _without_exponent(value, digits)
    return f"{value:.{digits}g}"


def _without_exponent(value: float, digits: int) -> str:
    whole = len(str(int(abs(value))))
    text = f"{value:,.{max(digits - whole, 0)}f}" if abs(value) >= 1 else f"{value:.{digits}g}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float | None) -> str:
    """A fraction of 1 as a percentage: ``28.3%``."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return figure(value)
    return number_text.percent(value)


def signed(value: float) -> str:
    """A difference with its sign: ``+0.25``."""
    return f"{'+' if value > 0 else _MINUS if value < 0 else ''}{figure(abs(value), 3)}"


def times(value: float | None) -> str:
    """A factor: ``3.53×``."""  # noqa: RUF002
    return NOT_MEASURED if value is None else f"{figure(value, 3)}{_TIMES}"


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units: ``1 h 12 min``."""
    if seconds is None:
        return NOT_MEASURED
    units = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    remaining = int(seconds)
    parts: list[str] = []
    for size, unit in units:
        if remaining >= size or (unit == "s" and not parts):
            parts.append(f"{remaining // size} {unit}")
            remaining %= size
    return " ".join(parts[:2])


def time_span(start: float, end: float) -> str:
    """The time between two Unix times, if both are known: ``1 h 12 min``."""
    return duration(max(end - start, 0.0) if is_known_time(start) else None)


def iso(timestamp: float) -> str:
    """Unix seconds in ISO 8601, for a ``datetime`` attribute."""
    return _datetime(timestamp).isoformat(timespec="seconds")


def is_known_time(timestamp: float) -> bool:
    """Whether Unix seconds are a time, rather than the lack of one."""
    return timestamp >= EARLIEST_KNOWN


def clock(timestamp: float) -> str:
    """Unix seconds as date and time in UTC."""
    if not is_known_time(timestamp):
        return UNKNOWN_TIME
    return _datetime(timestamp).strftime("%Y-%m-%d %H:%M UTC")


def _datetime(timestamp: float) -> datetime:
    """Clamped to the range of datetime: a training process may report any number of seconds."""
    return datetime.fromtimestamp(min(max(timestamp, 0.0), _LATEST_DATE), timezone.utc)


def segment(text: str) -> str:
    """One segment of a URL path, with slashes escaped."""
    return quote(text, safe="")
