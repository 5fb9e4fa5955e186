"""Webhooks as in Standard Webhooks: https://github.com/standard-webhooks/standard-webhooks."""

from __future__ import annotations

from datetime import datetime, timezone

from standardwebhooks import Webhook as Signer

import gradledger
from gradledger_monitor.alerts.channels.http_post import post
from gradledger_monitor.alerts.configuration import Alertmanager, Webhook
from gradledger_monitor.alerts.egress_policy import EgressPolicy
from gradledger_monitor.alerts.payload import Document, encoded
from gradledger_monitor.store.alerts.outbox import DeliveryResult

AGENT = f"gradledger/{gradledger.__version__}"


async def send(
    channel: Webhook,
    alert: str,
    document: Document,
    policy: EgressPolicy,
    timeout: float,
    now: float,
) -> DeliveryResult:
    """Make one attempt. ``alert`` is the id of the message, the same in every attempt."""
    body = encoded(document)
    headers = {**signature_headers(channel, alert, body, now), **json_headers(channel)}
    return await post(channel.address, body, headers, policy, timeout)


def signature_headers(channel: Webhook, alert: str, body: bytes, now: float) -> dict[str, str]:
    """The headers with which a receiver verifies the sender and recognizes a duplicate."""
    timestamp = datetime.fromtimestamp(int(now), timezone.utc)
    headers = {"webhook-id": alert, "webhook-timestamp": str(int(now))}
    signers = [Signer(secret.get_secret_value()) for secret in channel.secrets]
    if signers:
        signatures = [signer.sign(alert, timestamp, body.decode()) for signer in signers]
        headers["webhook-signature"] = " ".join(signatures)
    return headers


def json_headers(channel: Webhook | Alertmanager) -> dict[str, str]:
    """The headers that do not depend on the message."""
    headers = {"content-type": "application/json", "user-agent": AGENT}
    if channel.bearer is not None:
        headers["authorization"] = f"Bearer {channel.bearer.get_secret_value()}"
    return headers
