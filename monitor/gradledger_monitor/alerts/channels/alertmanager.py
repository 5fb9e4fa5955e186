"""Alertmanager's v2 API: each finding is one alert, so that existing on-call routing applies.

Alertmanager resolves an alert that is not re-sent in time. Therefore the end time of each alert is
later than its next repetition.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from gradledger_monitor.alerts.channels.http_post import post
from gradledger_monitor.alerts.channels.webhook import json_headers
from gradledger_monitor.alerts.configuration import Alertmanager
from gradledger_monitor.alerts.egress_policy import EgressPolicy
from gradledger_monitor.alerts.payload import Document, encoded
from gradledger_monitor.store.alerts.outbox import DeliveryResult

PATH = "/api/v2/alerts"
MARGIN = 1.5  # end time, as a multiple of ``repeat_after``
TEST_SECONDS = 300.0  # until a test alert ends


async def send(
    channel: Alertmanager,
    document: Document,
    policy: EgressPolicy,
    timeout: float,
    repeat_after: float,
) -> DeliveryResult:
    """Make one attempt; Alertmanager treats a repetition as the same alert."""
    body = encoded(alerts(document, repeat_after))
    url = channel.address.rstrip("/") + PATH
    return await post(url, body, json_headers(channel), policy, timeout)


def alerts(document: Document, repeat_after: float) -> Any:
    """The document as alerts. Alertmanager identifies an alert by its labels."""
    data, start = document["data"], _parse(document["timestamp"])
    if data["run"] is None:
        labels = {"alertname": "gradledger.test", "severity": "info", "service": "gradledger"}
        end = start + timedelta(seconds=TEST_SECONDS)
        return [_alert(labels, {"summary": data["message"]}, start, end, "")]
    end = start + timedelta(seconds=repeat_after * MARGIN)
    return [_finding_alert(data["run"], finding, start, end) for finding in data["findings"]]


def _finding_alert(run: Document, finding: Document, start: datetime, end: datetime) -> Document:
    labels = {
        "alertname": finding["rule"],
        "severity": finding["severity"],
        "service": "gradledger",
        "run": run["id"],
        "run_name": run["name"],
        "project": run["project"],
        "optimizer": str(finding["optimizer"]),
    }
    annotations = {
        "summary": finding["title"],
        "description": finding["summary"],
        "fix": finding["fix"],
        "certainty": finding["certainty"],
        "since_step": str(finding["since_step"]),
        "runbook_url": finding["rule_url"],
        "acknowledge_url": finding["acknowledge_url"],
    }
    not_empty = {name: text for name, text in annotations.items() if text}
    resolved = finding["reason"] == "resolved"
    return _alert(labels, not_empty, start, start if resolved else end, run["url"])


def _alert(
    labels: dict[str, str], annotations: dict[str, str], start: datetime, end: datetime, url: str
) -> Document:
    alert = {
        "labels": labels,
        "annotations": annotations,
        "startsAt": _format(start),
        "endsAt": _format(end),
    }
    return {**alert, "generatorURL": url} if url else alert


def _parse(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _format(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
