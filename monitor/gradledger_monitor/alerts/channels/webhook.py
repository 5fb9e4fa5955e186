"""Webhooks after Standard Webhooks: https://github.com/standard-webhooks/standard-webhooks."""

from __future__ import annotations

from datetime import datetime, timezone

from standardwebhooks import Webhook as Signer

import gradledger
from gradledger_monitor.alerts.configuration import Webhook
from gradledger_monitor.alerts.egress_policy import EgressPolicy
from gradledger_monitor.alerts.http_post import post
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
    """One attempt. ``alert`` is the id, the same at every attempt; the signature is of this one."""
    body = encoded(document)
    headers = {**signed(channel, alert, body, now), **common(channel)}
    return await post(channel.address, body, headers, policy, timeout)


def signed(channel: Webhook, alert: str, body: bytes, now: float) -> dict[str, str]:
    """The headers by which a receiver knows the sender, and a message that it already has."""
    at = datetime.fromtimestamp(int(now), timezone.utc)
    headers = {"webhook-id": alert, "webhook-timestamp": str(int(now))}
    signers = [Signer(secret.get_secret_value()) for secret in channel.secrets]
    if signers:
        signatures = [signer.sign(alert, at, body.decode()) for signer in signers]
        headers["webhook-signature"] = " ".join(signatures)
    return headers


def common(channel: Webhook) -> dict[str, str]:
    """Headers that say nothing of the message."""
    headers = {"content-type": "application/json", "user-agent": AGENT}
    if channel.bearer is not None:
        headers["authorization"] = f"Bearer {channel.bearer.get_secret_value()}"
    return headers
