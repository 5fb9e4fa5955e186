"""Slack, Discord, Teams, e-mail, PagerDuty and a hundred more, through Apprise.

It runs in a process of its own, started when there is something to send: it is loaded only then,
can be ended when it takes too long, and may connect only where we allow (``messenger_process``).
"""

from __future__ import annotations

import base64
import json
import sys

import anyio
from anyio.abc import Process

from gradledger_monitor.alerts import markdown
from gradledger_monitor.alerts.configuration import Apprise
from gradledger_monitor.alerts.egress_policy import EgressPolicy
from gradledger_monitor.alerts.http_post import MOST_DETAIL
from gradledger_monitor.alerts.payload import Document, worst
from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.store.alerts.outbox import DeliveryResult

COMMAND = [sys.executable, "-m", "gradledger_monitor.alerts.channels.messenger_process"]
TYPES = {"error": "failure", "warning": "warning", "info": "info", "ok": "success"}


async def send(
    channel: Apprise, document: Document, image: bytes | None, policy: EgressPolicy, timeout: float
) -> DeliveryResult:
    """One attempt, of at most ``timeout`` seconds."""
    told = {
        "url": channel.address,
        "title": markdown.title(document),
        "body": markdown.body(document),
        "type": TYPES[worst(document)] if document["data"]["findings"] else "info",
        "image": base64.b64encode(image).decode() if image else None,
        "networks": [str(network) for network in policy.allowed],
        "timeout": timeout,
    }
    with anyio.move_on_after(timeout):
        return _read(*await _run(json.dumps(told).encode()))
    return DeliveryResult("failed", f"not sent within {timeout:g} s")


async def _run(told: bytes) -> tuple[int, bytes]:
    """Its exit status and what it said; ended with us when we are interrupted."""
    process = await anyio.open_process(COMMAND, stderr=None)
    try:
        return await _conversation(process, told)
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def _conversation(process: Process, told: bytes) -> tuple[int, bytes]:
    assert process.stdin is not None and process.stdout is not None
    await process.stdin.send(told)
    await process.stdin.aclose()
    said = b"".join([part async for part in process.stdout])
    return await process.wait(), said


def _read(status: int, said: bytes) -> DeliveryResult:
    try:
        answer = json.loads(said)
        fate, detail, code = answer["fate"], str(answer["detail"]), answer["status"]
    except (ValueError, TypeError, KeyError):
        return DeliveryResult("failed", f"the process that sends ended with status {status}")
    return DeliveryResult(fate, printable(detail)[:MOST_DETAIL], code)
