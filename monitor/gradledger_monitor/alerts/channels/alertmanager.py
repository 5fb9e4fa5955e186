"""Alertmanager's v2 API: each finding is an alert there, so that existing on-call routing applies.

It forgets an alert that is not sent again in time, so each says until when it holds unless told
otherwise: somewhat longer than it takes to be repeated.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from gradledger_monitor.alerts.channels.webhook import AGENT
from gradledger_monitor.alerts.configuration import Alertmanager
from gradledger_monitor.alerts.egress_policy import EgressPolicy
from gradledger_monitor.alerts.http_post import post
from gradledger_monitor.alerts.payload import Document, encoded
from gradledger_monitor.store.alerts.outbox import DeliveryResult

PATH = "/api/v2/alerts"
MARGIN = 1.5  # of the time after which a finding that lasts is told again
TEST_LASTS = 300.0


async def send(
    channel: Alertmanager,
    document: Document,
    policy: EgressPolicy,
    timeout: float,
    repeat_after: float,
) -> DeliveryResult:
    """One attempt; sent again, it is the same alert there."""
    headers = {"content-type": "application/json", "user-agent": AGENT}
    if channel.bearer is not None:
        headers["authorization"] = f"Bearer {channel.bearer.get_secret_value()}"
    body = encoded(alerts(document, repeat_after))
    return await post(channel.address.rstrip("/") + PATH, body, headers, policy, timeout)


def alerts(document: Document, repeat_after: float) -> Any:
    """The document in Alertmanager's words. The labels are what tells alerts apart there."""
    data, at = document["data"], _time(document["timestamp"])
    if data["run"] is None:
        labels = {"alertname": "gradledger.test", "severity": "info", "service": "gradledger"}
        until = at + timedelta(seconds=TEST_LASTS)
        return [_alert(labels, {"summary": data["message"]}, at, until, "")]
    until = at + timedelta(seconds=repeat_after * MARGIN)
    return [_of_finding(data["run"], found, at, until) for found in data["findings"]]


def _of_finding(run: Document, found: Document, at: datetime, until: datetime) -> Document:
    labels = {
        "alertname": found["rule"],
        "severity": found["severity"],
        "service": "gradledger",
        "run": run["id"],
        "run_name": run["name"],
        "project": run["project"],
        "optimizer": str(found["optimizer"]),
    }
    said = {
        "summary": found["title"],
        "description": found["summary"],
        "fix": found["fix"],
        "certainty": found["certainty"],
        "since_step": str(found["since_step"]),
        "runbook_url": found["rule_url"],
        "acknowledge_url": found["acknowledge_url"],
    }
    end = at if found["reason"] == "resolved" else until
    return _alert(labels, {k: v for k, v in said.items() if v}, at, end, run["url"])


def _alert(
    labels: dict[str, str], said: dict[str, str], start: datetime, end: datetime, url: str
) -> Document:
    made = {"labels": labels, "annotations": said, "startsAt": _text(start), "endsAt": _text(end)}
    return {**made, "generatorURL": url} if url else made


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
