"""Which messages about a run are due now, and when to plan again (pure).

For each channel and finding there is at most one notification: the last one that was sent, or one
that is waiting. New findings wait for ``group_wait``, so that one message reports all new findings
of a run. Errors do not wait, and waiting findings are sent with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal, NamedTuple

from gradledger_monitor.alerts.configuration import Timing
from gradledger_monitor.alerts.routing import Routing
from gradledger_monitor.model.findings import SEVERITIES, Finding, Severity

Reason = Literal["new", "worse", "regressed", "repeated", "again", "resolved"]
State = Literal["waiting", "sent", "silenced", "resolved", "skipped"]

# Rules about inactivity: no newer step can confirm their findings, so they repeat without one.
INACTIVITY_RULES = "run."


class AlertKey(NamedTuple):
    """A finding on a channel."""

    channel: str
    rule: str
    optimizer: int


@dataclass(frozen=True)
class Notification:
    """The last notification about a finding on a channel; ``at`` is its Unix time.

    One that is ``waiting`` is not sent yet. One that is ``silenced`` was sent, and then somebody
    acknowledged the finding. One that is ``skipped`` was not sent: the finding was open when the
    channel was added.
    """

    state: State
    severity: Severity
    last_step: int
    at: float


@dataclass(frozen=True)
class AlertItem:
    """One finding in a message, and why it is sent."""

    reason: Reason
    finding: Finding


@dataclass(frozen=True)
class Message:
    """A message about a run to one channel."""

    channel: str
    items: tuple[AlertItem, ...]


@dataclass
class Plan:
    """Messages to send, notifications to store (None: to delete), and when to plan again."""

    messages: list[Message] = field(default_factory=list)
    notifications: dict[AlertKey, Notification | None] = field(default_factory=dict)
    next_plan_at: float | None = None


@dataclass(frozen=True)
class RunContext:
    """The properties of a run that alerts depend on."""

    name: str
    project: str
    finished: bool  # no more steps are expected


@dataclass(frozen=True)
class _Decision:
    """The decision for one finding on one channel: to send it, or which notification to store."""

    key: AlertKey
    reason: Reason | None = None  # to send it; None: not to
    finding: Finding | None = None
    since: float = 0.0  # when ``group_wait`` begins
    urgent: bool = False  # send without ``group_wait``
    notification: Notification | None = None  # to store if it is not sent
    next_plan_at: float | None = None


def plan(
    run: RunContext,
    findings: Sequence[Finding],
    notifications: Mapping[AlertKey, Notification],
    routing: Routing,
    timing: Timing,
    now: float,
) -> Plan:
    """What to send now. ``findings`` are all findings of the run, with their acknowledgements."""
    by_rule = {(f.rule, f.optimizer): f for f in findings}
    routed = {
        AlertKey(channel, f.rule, f.optimizer)
        for f in findings
        for channel in routing.channels_for(f, run.project, run.name)
    }
    keys = routed | {
        key
        for key, notification in notifications.items()
        if key.channel in routing.channels and notification.state != "skipped"
    }
    order = {rule: position for position, rule in enumerate(by_rule)}
    decisions = [
        _decide(key, by_rule.get(key[1:]), notifications.get(key), run, timing, now)
        for key in sorted(keys, key=lambda k: (k.channel, order.get(k[1:], len(order)), k))
    ]
    result = Plan()
    for channel, group in groupby(decisions, lambda decision: decision.key.channel):
        _plan_channel(result, channel, list(group), timing, now)
    return result


def _plan_channel(
    result: Plan, channel: str, decisions: list[_Decision], timing: Timing, now: float
) -> None:
    """Add one channel: as soon as one finding is due, all findings to send go in one message."""
    to_send = [d for d in decisions if d.reason is not None]
    due = min((d.since if d.urgent else d.since + timing.group_wait for d in to_send), default=None)
    is_due = due is not None and due <= now
    items = []
    for decision in decisions:
        if decision.reason is None or decision.finding is None:
            result.notifications[decision.key] = decision.notification
            result.next_plan_at = _earlier(result.next_plan_at, decision.next_plan_at)
        elif is_due:
            items.append(AlertItem(decision.reason, decision.finding))
            result.notifications[decision.key] = _sent(decision.reason, decision.finding, now)
            result.next_plan_at = _earlier(result.next_plan_at, now + timing.repeat_after)
        else:
            severity = decision.finding.severity
            waiting = Notification("waiting", severity, last_step=0, at=decision.since)
            result.notifications[decision.key] = waiting
    if items:
        result.messages.append(Message(channel, tuple(items)))
    elif due is not None:
        result.next_plan_at = _earlier(result.next_plan_at, due)


def _sent(reason: Reason, finding: Finding, now: float) -> Notification:
    state: State = "resolved" if reason == "resolved" else "sent"
    return Notification(state, finding.severity, finding.last_step, now)


def _earlier(first: float | None, second: float | None) -> float | None:
    return min((time for time in (first, second) if time is not None), default=None)


# ---------------------------------------------------------------- one finding on one channel


def _decide(
    key: AlertKey,
    finding: Finding | None,
    notification: Notification | None,
    run: RunContext,
    timing: Timing,
    now: float,
) -> _Decision:
    # The order matters: the resolution of a symptom or of an acknowledged finding is still sent.
    if finding is None or finding.lifecycle == "resolved":
        return _decide_resolved(key, finding, notification, timing, now)
    if finding.inhibited_by is not None:  # a symptom: its cause is sent
        return _Decision(key, notification=None if _is_waiting(notification) else notification)
    if finding.acknowledged is not None:
        silenced = _silenced(notification)
        return _Decision(key, notification=silenced, next_plan_at=finding.acknowledged.until)
    return _decide_ongoing(key, finding, notification, run, timing, now)


def _decide_resolved(
    key: AlertKey,
    finding: Finding | None,
    notification: Notification | None,
    timing: Timing,
    now: float,
) -> _Decision:
    if notification is None or _is_waiting(notification):  # resolved before it was sent
        return _Decision(key)
    if notification.state in ("resolved", "skipped") or not timing.resolved:
        return _Decision(key, notification=replace(notification, state="resolved"))
    finding = finding or _withdrawn(key, notification)
    return _Decision(key, "resolved", finding, since=now, urgent=True)


def _decide_ongoing(
    key: AlertKey,
    finding: Finding,
    notification: Notification | None,
    run: RunContext,
    timing: Timing,
    now: float,
) -> _Decision:
    reason = _change(finding, notification)
    if notification is None or reason is not None:
        waiting_since = notification.at if notification and _is_waiting(notification) else now
        urgent = finding.severity == "error" or reason == "again"
        return _Decision(key, reason, finding, since=waiting_since, urgent=urgent)
    repeat_at = notification.at + timing.repeat_after
    confirmed = finding.last_step > notification.last_step
    if run.finished or notification.state == "skipped":
        return _Decision(key, notification=notification)
    if repeat_at <= now and (confirmed or finding.rule.startswith(INACTIVITY_RULES)):
        return _Decision(key, "repeated", finding, since=now, urgent=True)
    next_plan_at = repeat_at if repeat_at > now else now + timing.repeat_after
    return _Decision(key, notification=notification, next_plan_at=next_plan_at)


def _change(finding: Finding, notification: Notification | None) -> Reason | None:
    """How an ongoing finding differs from its last notification; None: not at all."""
    if notification is None or notification.state == "waiting":
        return "regressed" if finding.since_step > finding.first_step else "new"
    if notification.state == "resolved" or finding.since_step > notification.last_step:
        return "regressed"
    if notification.state == "silenced":  # its acknowledgement expired or was withdrawn
        return "again"
    worse = SEVERITIES.index(finding.severity) > SEVERITIES.index(notification.severity)
    return "worse" if worse else None


def _is_waiting(notification: Notification | None) -> bool:
    return notification is not None and notification.state == "waiting"


def _silenced(notification: Notification | None) -> Notification | None:
    if notification is None or notification.state != "sent":
        return None if _is_waiting(notification) else notification
    return replace(notification, state="silenced")


def _withdrawn(key: AlertKey, notification: Notification) -> Finding:
    """Stands for a finding that was sent and that a later evaluation no longer makes."""
    return Finding(
        rule=key.rule,
        optimizer=key.optimizer,
        severity=notification.severity,
        first_step=notification.last_step,
        last_step=notification.last_step,
        steps=0,
        title=f"{key.rule} no longer applies",
        summary="Later steps, late records or changed rule settings removed the finding.",
        fix="",
        evidence={},
        lifecycle="resolved",
    )
