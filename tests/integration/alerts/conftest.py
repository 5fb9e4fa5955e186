"""Fixtures: a receiver, and services that tell it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.receiver import Receiver, receiving
from helpers.service import Service

PATIENCE = 90.0  # seconds until what must happen is missed; a busy machine is no failure


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """Somebody else's server."""
    with receiving(tmp_path / "receiver") as running:
        yield running


def told_to(receiver: Receiver, **more: Any) -> dict[str, Any]:
    """Settings of a service that tells this receiver, without long waits."""
    settings: dict[str, Any] = {
        "alert_channels": [receiver.channel()],
        "alert_networks": "127.0.0.0/8",
        "alert_retries": [0.2, 0.3, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5],
        **more,
    }
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in settings.items()}


def sent(service: Service, **asked: str) -> list[dict[str, Any]]:
    """What the service says of its messages."""
    query = "&".join(map("=".join, asked.items()))
    found: list[dict[str, Any]] = service.get(f"/alerts?{query}").json()["alerts"]
    return found
