"""The kinds of channels with real libraries, and DNS names that change their address."""

from __future__ import annotations

import copy
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from gradledger_monitor.alerts import chart_png, payload
from gradledger_monitor.alerts.assembly import Alerts
from gradledger_monitor.alerts.channels import alertmanager, messengers, webhook
from gradledger_monitor.alerts.configuration import Alertmanager, Apprise, Webhook, parse_channel
from gradledger_monitor.alerts.egress_policy import EgressPolicy
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.store.alerts.outbox import DeliveryResult
from gradledger_monitor.store.database import Store
from helpers import forkserver
from helpers.patience import HANGS
from helpers.receiver import OLD_SECRET, SECRET, Receiver

LOOPBACK = EgressPolicy.allowing(["127.0.0.0/8"])
FENCED = "```\n# before: _a_\n\nb = 1\n```"
TEST = payload.test_document("https://monitor.example", 1_000.0)


def to_webhook(url: str, timeout: float = HANGS, **fields: Any) -> DeliveryResult:
    """The result of one attempt to send a test."""
    channel = parse_channel({"name": "c", "url": url, "secrets": [SECRET], **fields})
    assert isinstance(channel, Webhook)

    async def send() -> DeliveryResult:
        return await webhook.send(channel, "msg_1", TEST, LOOPBACK, timeout, time.time())

    return anyio.run(send)


def test_all_secrets_sign_and_the_bearer_token_is_sent(receiver: Receiver) -> None:
    for secrets in ([OLD_SECRET, SECRET], [SECRET, OLD_SECRET]):
        assert to_webhook(receiver.url, secrets=secrets, bearer="word").outcome == "delivered"
    assert to_webhook(receiver.url, secrets=[OLD_SECRET]).outcome == "delivered"
    assert [one["verified"] for one in receiver.got()] == [True, True, False]
    assert receiver.got()[0]["bearer"] == "Bearer word"


def test_an_attempt_ends_at_the_timeout(receiver: Receiver) -> None:
    receiver.behave({"hang": True})
    result = to_webhook(receiver.url, timeout=0.25)
    assert result == DeliveryResult("failed", "no response within 0.25 s")


def test_retry_after_is_a_part_of_the_result(receiver: Receiver) -> None:
    receiver.behave({"status": 429, "headers": {"retry-after": "77"}})
    result = to_webhook(receiver.url)
    assert (result.outcome, result.status, result.retry_after) == ("failed", 429, 77.0)


def test_messages_are_sent_with_the_timeout_and_the_delays_of_the_settings(tmp_path: Path) -> None:
    settings = Settings.model_construct(alert_timeout=3.5, alert_retries=[1.0, 2.0])
    with closing(Store(f"sqlite:///{tmp_path / 'a.db'}")) as store:
        options = Alerts(settings, "http://127.0.0.1", store).options
    assert (options.timeout, options.delays) == (3.5, [1.0, 2.0])


FakeDns = Callable[[list[str]], list[str]]


@pytest.fixture
def fake_dns(monkeypatch: pytest.MonkeyPatch) -> FakeDns:
    """Makes each resolution of a name return the next address; returns the resolved names."""
    names: list[str] = []

    def resolve_to(addresses: list[str]) -> list[str]:
        remaining = iter(addresses)

        def getaddrinfo(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
            names.append(host.decode() if isinstance(host, bytes) else host)
            address = next(remaining)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        return names

    return resolve_to


def test_a_name_is_resolved_once_and_the_checked_address_is_used(
    receiver: Receiver, fake_dns: FakeDns
) -> None:
    resolved = fake_dns(["192.0.2.1", "127.0.0.1", "127.0.0.1"])  # another address after the check
    refused = to_webhook(f"http://rebinding.example:{receiver.port}/hook", timeout=1)
    assert refused.outcome == "failed" and "192.0.2.1" in refused.detail
    assert resolved == ["rebinding.example"] and receiver.got() == []


def test_only_the_checked_public_address_is_connected_to(
    receiver: Receiver, fake_dns: FakeDns
) -> None:
    fake_dns(["1.1.1.1", "127.0.0.1", "127.0.0.1"])
    failed = to_webhook(f"http://rebinding.example:{receiver.port}/hook", timeout=1)
    assert failed.outcome == "failed" and "not a public" not in failed.detail
    assert receiver.got() == []


# ---------------------------------------------------------------- messengers, by Apprise


def to_messenger(
    url: str, networks: list[str], image: bytes | None = None, document: payload.Document = TEST
) -> DeliveryResult:
    """The result of one attempt to send, by default a test."""
    channel = Apprise.model_validate({"name": "c", "kind": "apprise", "url": url})
    return anyio.run(
        messengers.send, channel, document, image, EgressPolicy.allowing(networks), HANGS
    )


def test_a_messenger_gets_text_and_a_chart(receiver: Receiver) -> None:
    values = [1.0, 2.0, 3.0]
    picture = chart_png.draw("norm.spike", 2, {"step": [1, 2, 3], "norm": values})
    url = f"json://127.0.0.1:{receiver.port}/hook"
    assert to_messenger(url, ["127.0.0.0/8"], picture) == DeliveryResult("delivered")
    (request,) = receiver.got()
    assert request["body"]["title"] == "gradledger: test"
    assert "Delivery works" in request["body"]["message"]
    assert request["body"]["attachments"][0]["mimetype"] == "image/png"


@pytest.mark.parametrize(
    ("format_", "shown"),
    [("html", "<pre><code># before: _a_\n\nb = 1\n</code></pre>"), ("markdown", FENCED)],
)
def test_code_stays_code_in_html_and_in_markdown(
    receiver: Receiver, format_: str, shown: str
) -> None:
    url = f"json://127.0.0.1:{receiver.port}/hook?format={format_}"
    document: payload.Document = copy.deepcopy(TEST)
    document["data"]["message"] = f"Fix it.\n{FENCED}\nAbout this."
    assert to_messenger(url, ["127.0.0.0/8"], document=document) == DeliveryResult("delivered")
    (request,) = receiver.got()
    assert shown in request["body"]["message"] and "About this." in request["body"]["message"]


def test_a_messenger_obeys_the_egress_policy_and_follows_no_redirect(receiver: Receiver) -> None:
    refused = to_messenger(f"json://localhost:{receiver.port}/hook", [])
    assert refused.outcome == "failed" and "not a public address" in refused.detail
    assert receiver.got() == []
    elsewhere = {"location": f"http://127.0.0.1:{receiver.port}/elsewhere"}
    receiver.behave({"status": 302, "headers": elsewhere})
    assert to_messenger(f"json://127.0.0.1:{receiver.port}/hook", ["127.0.0.1"]).outcome == "failed"
    assert [one["path"] for one in receiver.got()] == ["/hook"]


def test_a_url_that_apprise_does_not_support_is_reported() -> None:
    failed = to_messenger("pigeon://loft", [])
    assert failed.outcome == "failed" and "Apprise does not support this URL" in failed.detail


def test_the_service_does_not_load_apprise(tmp_path: Path) -> None:
    script = tmp_path / "modules.py"
    script.write_text("import sys, gradledger_monitor.app\nprint(*sys.modules)")
    modules = forkserver.run([script], server="service").stdout.split()
    assert "gradledger_monitor.app" in modules
    assert [module for module in modules if "apprise" in module] == []


# ---------------------------------------------------------------- Alertmanager


def test_alertmanager_receives_alerts_at_its_api_path(receiver: Receiver) -> None:
    url = f"http://127.0.0.1:{receiver.port}/"
    channel = Alertmanager.model_validate({"name": "c", "kind": "alertmanager", "url": url})
    result = anyio.run(alertmanager.send, channel, TEST, LOOPBACK, HANGS, 3_600.0)
    assert result.outcome == "delivered"
    (request,) = receiver.got()
    assert request["path"] == "/api/v2/alerts"
    assert request["body"][0]["labels"]["alertname"] == "gradledger.test"
