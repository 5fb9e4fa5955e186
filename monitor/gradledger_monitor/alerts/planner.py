"""What is to be said of a run now, and when to look again (pure).

For each channel and finding there is at most one notice: what was last said of it there. New
findings wait a while for others of the same run, so that one message tells them all; errors do not
wait, and take with them whatever does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, NamedTuple

from gradledger_monitor.alerts.configuration import Timing
from gradledger_monitor.alerts.routing import Routing
from gradledger_monitor.model.findings import SEVERITIES, Finding, Severity

Reason = Literal["new", "worse", "regressed", "repeated", "again", "resolved"]
State = Literal["waiting", "told", "hushed", "resolved"]

# These claim that nothing happens: no newer step can show them.
LASTS_WITHOUT_STEPS = "run."


class Place(NamedTuple):
    """Where something is said, and of which finding."""

    channel: str
    rule: str
    optimizer: int


@dataclass(frozen=True)
class Notice:
    """What was last said of a finding on a channel; ``at`` is when, in Unix seconds.

    ``waiting`` has not been said yet; ``hushed`` was said, and then acknowledged by someone.
    """

    state: State
    severity: Severity
    last_step: int
    at: float


@dataclass(frozen=True)
class Item:
    """One finding in a message, and why it is there."""

    reason: Reason
    finding: Finding


@dataclass(frozen=True)
class Message:
    """What a channel is to be told of a run."""

    channel: str
    items: tuple[Item, ...]


@dataclass
class Plan:
    """Messages to send, notices to keep (None: to forget), and when to look again."""

    messages: list[Message] = field(default_factory=list)
    notices: dict[Place, Notice | None] = field(default_factory=dict)
    look_at: float | None = None


@dataclass(frozen=True)
class Subject:
    """A run as far as alerts care."""

    name: str
    project: str
    over: bool  # no more steps are to be expected


@dataclass(frozen=True)
class _Wish:
    """What should become of one finding on one channel."""

    place: Place
    reason: Reason | None = None  # to be told, for this reason
    finding: Finding | None = None
    since: float = 0.0  # what is told waits from then on
    urgent: bool = False
    notice: Notice | None = None  # what to note where nothing is told
    look_at: float | None = None


def plan(
    subject: Subject,
    findings: Sequence[Finding],
    notices: Mapping[Place, Notice],
    routing: Routing,
    timing: Timing,
    now: float,
) -> Plan:
    """What to say now. ``findings`` are those of the run as they stand, acknowledgements too."""
    found = {(f.rule, f.optimizer): f for f in findings}
    routed = {
        Place(channel, f.rule, f.optimizer)
        for f in findings
        for channel in routing.of(f, subject.project, subject.name)
    }
    places = routed | {place for place in notices if place.channel in routing.channels}
    order = {key: at for at, key in enumerate(found)}
    wishes = [
        _wish(place, found.get(place[1:]), notices.get(place), subject, timing, now)
        for place in sorted(places, key=lambda p: (p.channel, order.get(p[1:], len(order)), p))
    ]
    made = Plan()
    for channel, group in groupby(wishes, lambda wish: wish.place.channel):
        _speak(made, channel, list(group), timing, now)
    return made


def _speak(made: Plan, channel: str, wishes: list[_Wish], timing: Timing, now: float) -> None:
    """One channel: everything that is to be told goes together, as soon as anything is due."""
    told = [wish for wish in wishes if wish.reason is not None]
    due = min((w.since if w.urgent else w.since + timing.group_wait for w in told), default=None)
    speaks = due is not None and due <= now
    items = []
    for wish in wishes:
        if wish.reason is None or wish.finding is None:
            made.notices[wish.place] = wish.notice
            made.look_at = _earlier(made.look_at, wish.look_at)
        elif speaks:
            items.append(Item(wish.reason, wish.finding))
            made.notices[wish.place] = _said(wish.reason, wish.finding, now)
            made.look_at = _earlier(made.look_at, now + timing.repeat_after)
        else:
            finding = wish.finding
            made.notices[wish.place] = Notice("waiting", finding.severity, 0, wish.since)
    if items:
        made.messages.append(Message(channel, tuple(items)))
    elif due is not None:
        made.look_at = _earlier(made.look_at, due)


def _said(reason: Reason, finding: Finding, now: float) -> Notice:
    state: State = "resolved" if reason == "resolved" else "told"
    return Notice(state, finding.severity, finding.last_step, now)


def _earlier(one: float | None, other: float | None) -> float | None:
    return min((at for at in (one, other) if at is not None), default=None)


# ---------------------------------------------------------------- one finding on one channel


def _wish(
    place: Place,
    finding: Finding | None,
    notice: Notice | None,
    subject: Subject,
    timing: Timing,
    now: float,
) -> _Wish:
    if finding is None or finding.lifecycle == "resolved":
        return _over(place, finding, notice, timing, now)
    if finding.inhibited_by is not None:  # a symptom: its cause is told
        return _Wish(place, notice=None if _waits(notice) else notice)
    if finding.acknowledged is not None:
        hushed = _hushed(notice)
        return _Wish(place, notice=hushed, look_at=finding.acknowledged.until)
    return _lasts(place, finding, notice, subject, timing, now)


def _over(
    place: Place, finding: Finding | None, notice: Notice | None, timing: Timing, now: float
) -> _Wish:
    if notice is None or _waits(notice):  # it passed before anyone was told
        return _Wish(place)
    if notice.state == "resolved" or not timing.resolved:
        return _Wish(place, notice=Notice("resolved", notice.severity, notice.last_step, notice.at))
    return _Wish(place, "resolved", finding or _vanished(place, notice), now, urgent=True)


def _lasts(
    place: Place,
    finding: Finding,
    notice: Notice | None,
    subject: Subject,
    timing: Timing,
    now: float,
) -> _Wish:
    reason = _news(finding, notice)
    if reason is not None:
        since = notice.at if notice is not None and _waits(notice) else now
        urgent = finding.severity == "error" or reason == "again"
        return _Wish(place, reason, finding, since, urgent)
    assert notice is not None  # without one, everything is news
    repeat_at = notice.at + timing.repeat_after
    newer = finding.last_step > notice.last_step or finding.rule.startswith(LASTS_WITHOUT_STEPS)
    if subject.over:
        return _Wish(place, notice=notice)
    if newer and repeat_at <= now:
        return _Wish(place, "repeated", finding, now, urgent=True)
    again = repeat_at if repeat_at > now else now + timing.repeat_after
    return _Wish(place, notice=notice, look_at=again)


def _news(finding: Finding, notice: Notice | None) -> Reason | None:
    """Why a finding that lasts is to be told, if it is news."""
    if notice is None or notice.state == "waiting":
        return "regressed" if finding.since_step > finding.first_step else "new"
    if notice.state == "resolved" or finding.since_step > notice.last_step:
        return "regressed"
    if notice.state == "hushed":  # its acknowledgement ran out, or was taken back
        return "again"
    worse = SEVERITIES.index(finding.severity) > SEVERITIES.index(notice.severity)
    return "worse" if worse else None


def _waits(notice: Notice | None) -> bool:
    return notice is not None and notice.state == "waiting"


def _hushed(notice: Notice | None) -> Notice | None:
    if notice is None or notice.state != "told":
        return None if _waits(notice) else notice
    return Notice("hushed", notice.severity, notice.last_step, notice.at)


def _vanished(place: Place, notice: Notice) -> Finding:
    """For what was told, and is not found any more at all."""
    return Finding(
        rule=place.rule,
        optimizer=place.optimizer,
        severity=notice.severity,
        first_step=notice.last_step,
        last_step=notice.last_step,
        steps=0,
        title=f"{place.rule} is not found any more",
        summary="The run was judged again with records that came late, and this is not found.",
        fix="",
        evidence={},
        lifecycle="resolved",
    )
