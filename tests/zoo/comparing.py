"""Compares the behaviour and the cost of a program without and with the hooks."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from zoo.processes import HOOKS, Outcome

# From start to end. The hooks wait up to WAIT at the end for a service that does not answer. They
# take SECONDS, on a machine that takes CALIBRATION seconds for a million additions, and a share of
# the time of a program that takes seconds to start, because that time varies; and by as much as
# the runs without the hooks differ, a later end shows nothing.
WAIT = 0.8
SECONDS = 0.6
CALIBRATION = 0.09
TIME_SHARE = 0.2
# Of the peak of resident memory. The hooks were measured to take up to 10.7 MiB of a process that
# starts anew: their modules and those of the standard library that send records, two threads, the
# records.
MEMORY_KIB = 12 * 1024

_OURS = re.compile(r"^gradledger: .*\n?(?:  .*\n?){0,2}", re.MULTILINE)  # a finding: three lines
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")
_LOG_TIME = re.compile(r"\b([A-Z])\d{4} \d\d:\d\d:\d\d\.\d+(?: \d+)?")  # and process id
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: \d+:\d+)?")
_OUR_FRAME = re.compile(rf'^  File "{re.escape(str(HOOKS))}[^\n]*\n(?:    [^\n]*\n)*', re.MULTILINE)


def differences(
    without: Sequence[Outcome], hooked: Sequence[Outcome], slowness: float
) -> list[str]:
    """The differences of the last outcome with the hooks; for time and memory, the minimum of all
    runs of each side counts."""
    base, other = without[-1], hooked[-1]
    return [*behaviour(base, other), *cost(without, hooked, slowness)]


def behaviour(base: Outcome, other: Outcome) -> list[str]:
    """Differences in the behaviour of a program."""
    results = []
    if other.timed_out and not base.timed_out:
        results.append(
            f"hangs: killed after {other.seconds:.0f} s; ends after {base.seconds:.1f} s"
        )
    elif base.status != other.status:
        results.append(f"exit status {other.status}, without the hooks {base.status}")
    if base.stdout != other.stdout:
        results.append(_first_difference("stdout", _text(base.stdout), _text(other.stdout)))
    if foreign(base.stderr) != foreign(other.stderr):
        results.append(_first_difference("stderr", foreign(base.stderr), foreign(other.stderr)))
    return results


def slowness() -> float:
    """How many times as long an addition takes now as on the machine of ``SECONDS``; at least 1."""
    began, total = time.perf_counter(), 0
    for number in range(1_000_000):
        total += number
    return max(1.0, (time.perf_counter() - began) / CALIBRATION)


def cost(without: Sequence[Outcome], hooked: Sequence[Outcome], slowness: float = 1.0) -> list[str]:
    """Differences in time and memory beyond the limits, of which that of time is multiplied."""
    results = []
    later = seconds(hooked) - seconds(without)
    variation = max(outcome.seconds for outcome in without) - seconds(without)
    most = WAIT + SECONDS * slowness + TIME_SHARE * seconds(without) + variation
    if later > most and not hooked[-1].timed_out:  # an earlier end is no problem
        results.append(f"ends {later:+.2f} s later ({seconds(without):.2f} s without the hooks)")
    base, more = peak(without), peak(hooked) - peak(without)
    if more > MEMORY_KIB:
        results.append(f"takes {more / 1024:+.1f} MiB ({base / 1024:.0f} MiB without the hooks)")
    return results


def foreign(stderr: str) -> str:
    """Standard error without lines and frames of gradledger, addresses and times of day."""
    text = _OUR_FRAME.sub("", _OURS.sub("", stderr))
    text = _DATE.sub("", text)
    return _LOG_TIME.sub(r"\1", _ADDRESS.sub("0x", text))


def own_lines(stderr: str) -> list[str]:
    """The lines of gradledger."""
    return [line.strip() for line in _OURS.findall(stderr)]


def seconds(outcomes: Sequence[Outcome]) -> float:
    """The shortest time."""
    return min(outcome.seconds for outcome in outcomes)


def peak(outcomes: Sequence[Outcome]) -> int:
    """The smallest peak, in KiB."""
    return min(outcome.peak_kib for outcome in outcomes)


def _text(output: bytes) -> str:
    return output.decode(errors="backslashreplace")


def _first_difference(stream: str, base: str, other: str) -> str:
    expected, got = base.splitlines(), other.splitlines()
    for number, (one, two) in enumerate(zip(expected, got, strict=False), 1):
        if one != two:
            return f"{stream}, line {number}: {two[:300]!r}, without the hooks {one[:300]!r}"
    longer, what = (got, "more") if len(got) > len(expected) else (expected, "missing")
    rest = longer[min(len(got), len(expected)) :]
    return (
        f"{stream}: {len(rest)} lines {what}, the last is {rest[-1][:300]!r}"
        if rest
        else (f"{stream} differs at its end: {other[-80:]!r}, without the hooks {base[-80:]!r}")
    )
