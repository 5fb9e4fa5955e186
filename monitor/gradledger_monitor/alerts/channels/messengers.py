"""Slack, Discord, Teams, e-mail, PagerDuty and a hundred more services, through Apprise.

Apprise runs in a process that is started for each message. Therefore the service does not load it,
can end it after a timeout, and can restrict its connections (``messenger_process``).
"""

from __future__ import annotations

import base64
import json
import sys

import anyio
from anyio.abc import Process

from gradledger_monitor.alerts import markdown
from gradledger_monitor.alerts.channels.http_post import MAX_DETAIL
from gradledger_monitor.alerts.configuration import Apprise
from gradledger_monitor.alerts.egress_policy import EgressPolicy
from gradledger_monitor.alerts.payload import Document, worst_severity
from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.store.alerts.outbox import DeliveryResult

COMMAND = [sys.executable, "-m", "gradledger_monitor.alerts.channels.messenger_process"]
TYPES = {"error": "failure", "warning": "warning", "info": "info", "ok": "success"}


async def send(
    channel: Apprise, document: Document, image: bytes | None, policy: EgressPolicy, timeout: float
) -> DeliveryResult:
    """Make one attempt, of at most ``timeout`` seconds."""
    request = {
        "url": channel.address,
        "title": markdown.title(document),
        "body": markdown.body(document),
        "type": TYPES[worst_severity(document)] if document["data"]["findings"] else "info",
        "image": base64.b64encode(image).decode() if image else None,
        "networks": [str(network) for network in policy.allowed],
    }
    with anyio.move_on_after(timeout):
        return _parse(*await _run(json.dumps(request).encode()))
    return DeliveryResult("failed", f"not sent within {timeout:g} s")


async def _run(request: bytes) -> tuple[int, bytes]:
    """The exit status and the output of the process. It is killed if this call is cancelled."""
    process = await anyio.open_process(COMMAND, stderr=None)
    try:
        return await _communicate(process, request)
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def _communicate(process: Process, request: bytes) -> tuple[int, bytes]:
    assert process.stdin is not None and process.stdout is not None
    await process.stdin.send(request)
    await process.stdin.aclose()
    output = b"".join([part async for part in process.stdout])
    return await process.wait(), output


def _parse(status: int, output: bytes) -> DeliveryResult:
    try:
        result = json.loads(output)
        outcome, detail, code = result["outcome"], str(result["detail"]), result["status"]
    except (ValueError, TypeError, KeyError):
        return DeliveryResult("failed", f"the messenger process ended with exit status {status}")
    return DeliveryResult(outcome, printable(detail)[:MAX_DETAIL], code)
