"""Where messages may go, through real libraries: names that change, messengers, Alertmanager."""

from __future__ import annotations

import copy
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from gradledger_monitor.alerts import chart_png, payload
from gradledger_monitor.alerts.channels import alertmanager, messengers, webhook
from gradledger_monitor.alerts.configuration import Alertmanager, Apprise, Webhook, channel_of
from gradledger_monitor.alerts.egress_policy import EgressPolicy
from gradledger_monitor.store.alerts.outbox import DeliveryResult
from helpers.receiver import OLD_SECRET, SECRET, Receiver

OURS = EgressPolicy.allowing(["127.0.0.0/8"])
FENCED = "```\n# before: _a_\n\nb = 1\n```"
TEST = payload.test("https://monitor.example", 1_000.0)
LATE = 60.0  # a busy machine takes its time to start a process


def to_webhook(url: str, timeout: float = 5, **said: Any) -> DeliveryResult:
    """One attempt to send a test."""
    channel = channel_of({"name": "c", "url": url, "secrets": [SECRET], **said})
    assert isinstance(channel, Webhook)

    async def send() -> DeliveryResult:
        return await webhook.send(channel, "msg_1", TEST, OURS, timeout, time.time())

    return anyio.run(send)


def test_old_and_new_secrets_both_sign_and_the_bearer_is_sent(receiver: Receiver) -> None:
    for secrets in ([OLD_SECRET, SECRET], [SECRET, OLD_SECRET]):
        assert to_webhook(receiver.url, secrets=secrets, bearer="word").outcome == "delivered"
    assert to_webhook(receiver.url, secrets=[OLD_SECRET]).outcome == "delivered"
    assert [one["verified"] for one in receiver.got()] == [True, True, False]
    assert receiver.got()[0]["bearer"] == "Bearer word"


Answers = Callable[[list[str]], list[str]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Makes every lookup of a name give the next of these addresses; the names that were asked."""
    asked: list[str] = []

    def answer(addresses: list[str]) -> list[str]:
        left = iter(addresses)

        def look_up(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
            asked.append(host.decode() if isinstance(host, bytes) else host)
            address = next(left)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        return asked

    return answer


def test_a_name_is_looked_up_once_and_what_was_checked_is_what_is_reached(
    receiver: Receiver, names: Answers
) -> None:
    asked = names(["192.0.2.1", "127.0.0.1", "127.0.0.1"])  # public for the check, then ours
    refused = to_webhook(f"http://rebinding.example:{receiver.port}/hook", timeout=1)
    assert refused.outcome == "failed" and "192.0.2.1" in refused.detail
    assert asked == ["rebinding.example"] and receiver.got() == []


def test_a_public_address_is_spoken_with_and_nobody_else(
    receiver: Receiver, names: Answers
) -> None:
    names(["1.1.1.1", "127.0.0.1", "127.0.0.1"])
    failed = to_webhook(f"http://rebinding.example:{receiver.port}/hook", timeout=1)
    assert failed.outcome == "failed" and "not a public" not in failed.detail
    assert receiver.got() == []


# ---------------------------------------------------------------- messengers, by Apprise


def to_messenger(
    url: str, networks: list[str], image: bytes | None = None, said: payload.Document = TEST
) -> DeliveryResult:
    """One attempt to send, by default a test."""
    channel = Apprise.model_validate({"name": "c", "kind": "apprise", "url": url})
    return anyio.run(messengers.send, channel, said, image, EgressPolicy.allowing(networks), LATE)


def test_a_messenger_gets_words_and_a_picture(receiver: Receiver) -> None:
    values = [1.0, 2.0, 3.0]
    picture = chart_png.drawn("norm.spike", 2, {"step": [1, 2, 3], "norm": values})
    url = f"json://127.0.0.1:{receiver.port}/hook"
    assert to_messenger(url, ["127.0.0.0/8"], picture) == DeliveryResult("delivered")
    (came,) = receiver.got()
    assert came["body"]["title"] == "gradledger: test"
    assert "it arrived" in came["body"]["message"]
    assert came["body"]["attachments"][0]["mimetype"] == "image/png"


@pytest.mark.parametrize(
    ("format_", "shown"),
    [("html", "<pre><code># before: _a_\n\nb = 1\n</code></pre>"), ("markdown", FENCED)],
)
def test_code_stays_code_where_a_messenger_wants_html_too(
    receiver: Receiver, format_: str, shown: str
) -> None:
    url = f"json://127.0.0.1:{receiver.port}/hook?format={format_}"
    said: payload.Document = copy.deepcopy(TEST)
    said["data"]["message"] = f"Fix it.\n{FENCED}\nAbout this."
    assert to_messenger(url, ["127.0.0.0/8"], said=said) == DeliveryResult("delivered")
    (came,) = receiver.got()
    assert shown in came["body"]["message"] and "About this." in came["body"]["message"]


def test_a_messenger_is_held_to_the_same_addresses_and_follows_nothing(receiver: Receiver) -> None:
    refused = to_messenger(f"json://localhost:{receiver.port}/hook", [])
    assert refused.outcome == "failed" and "not a public address" in refused.detail
    assert receiver.got() == []
    elsewhere = {"location": f"http://127.0.0.1:{receiver.port}/elsewhere"}
    receiver.behave({"status": 302, "headers": elsewhere})
    assert to_messenger(f"json://127.0.0.1:{receiver.port}/hook", ["127.0.0.1"]).outcome == "failed"
    assert [one["path"] for one in receiver.got()] == ["/hook"]


def test_what_apprise_does_not_know_is_said() -> None:
    failed = to_messenger("pigeon://loft", [])
    assert failed.outcome == "failed" and "Apprise knows no such address" in failed.detail


def test_the_service_does_not_load_apprise() -> None:
    code = "import sys, gradledger_monitor.app; print([m for m in sys.modules if 'apprise' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done


# ---------------------------------------------------------------- Alertmanager


def test_alertmanager_is_told_at_its_own_path(receiver: Receiver) -> None:
    url = f"http://127.0.0.1:{receiver.port}/"
    channel = Alertmanager.model_validate({"name": "c", "kind": "alertmanager", "url": url})
    assert anyio.run(alertmanager.send, channel, TEST, OURS, 5, 3_600.0).outcome == "delivered"
    (came,) = receiver.got()
    assert came["path"] == "/api/v2/alerts"
    assert came["body"][0]["labels"]["alertname"] == "gradledger.test"
