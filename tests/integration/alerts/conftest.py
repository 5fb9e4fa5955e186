"""Fixtures: a receiver, and services that send to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.receiver import Receiver, receiving
from helpers.service import Service


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """A server that receives alerts."""
    with receiving(tmp_path / "receiver") as running:
        yield running


def sending_to(receiver: Receiver, **more: Any) -> dict[str, Any]:
    """Settings of a service that sends to this receiver, with short delays."""
    settings: dict[str, Any] = {
        "alert_channels": [receiver.channel()],
        "alert_networks": "127.0.0.0/8",
        "alert_group_wait": 0.1,
        "alert_retries": [0.2, 0.3, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5],
        **more,
    }
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in settings.items()}


def messages(service: Service, **filters: str) -> list[dict[str, Any]]:
    """The messages of the service, the newest first."""
    query = "&".join(map("=".join, filters.items()))
    alerts: list[dict[str, Any]] = service.get(f"/alerts?{query}").json()["alerts"]
    return alerts
