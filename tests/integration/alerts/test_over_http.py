"""Channels, routes, messages and links, over HTTP and on the command line."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from helpers import command
from helpers.batches import batch, eventually, fair_step, step
from helpers.receiver import OLD_SECRET, SECRET, Receiver
from helpers.service import Service, running_service
from integration.alerts.conftest import PATIENCE, sent, told_to

RULE = "reduction.token_weights_unequal"
SECRETS = (SECRET, OLD_SECRET, "hidden-in-the-path", "a-bearer-token")


@pytest.fixture
def service(receiver: Receiver, tmp_path: Path) -> Iterator[Service]:
    """A service without any channel in its settings."""
    with running_service(tmp_path / "a.db", **told_to(receiver, alert_channels=[])) as running:
        yield running


def put(service: Service, path: str, said: Any) -> httpx2.Response:
    """Change something about alerts."""
    return httpx2.put(f"{service.url}/api/v1/alerts{path}", json=said, timeout=30)


def post(service: Service, path: str) -> httpx2.Response:
    """Have something done."""
    return httpx2.post(f"{service.url}/api/v1/alerts{path}", timeout=30)


def test_a_channel_is_made_tried_out_and_told(service: Service, receiver: Receiver) -> None:
    config = {k: v for k, v in receiver.channel().items() if k != "name"}
    made = put(service, "/channels/hook", config)
    assert made.status_code == 200 and made.json()["secret"] is None
    tried = post(service, "/channels/hook/test").json()
    assert (tried["outcome"], tried["status"]) == ("delivered", 204)
    (test,) = receiver.got()
    assert test["verified"] and test["body"]["type"] == "gradledger.test"
    service.post(batch("r", [step(1)]))
    assert eventually(PATIENCE, lambda: len(receiver.alerts()) == 1)


def test_no_secret_is_ever_shown_again(service: Service, receiver: Receiver) -> None:
    secret = put(service, "/channels/made", {"url": receiver.url}).json()["secret"]
    assert secret.startswith("whsec_")
    config = {"url": receiver.url + "/hidden-in-the-path", "bearer": "a-bearer-token"}
    put(service, "/channels/given", {**config, "secrets": [SECRET, OLD_SECRET]})
    put(service, "/channels/slack", {"kind": "apprise", "url": "slack://hidden-in-the-path/b/c"})
    said = service.get("/alerts/channels").text
    said += httpx2.get(f"{service.url}/settings").text
    told = service.get("/alerts/channels").json()["channels"]
    assert [one["secrets"] for one in told] == [2, 1, 0]
    assert not [word for word in (*SECRETS, secret) if word in said]


def test_routes_choose_by_severity_rule_project_and_name(
    service: Service, receiver: Receiver
) -> None:
    for name in ("all", "scaler", "mine"):
        config = receiver.channel(url=f"{receiver.url}/{name}")
        put(service, f"/channels/{name}", {k: v for k, v in config.items() if k != "name"})
    routes = [
        {"channels": ["all"], "severity": "error"},
        {"channels": ["scaler"], "rules": ["scaler.*"]},
        {"channels": ["mine"], "projects": ["mine"], "runs": ["big-*"]},
    ]
    assert put(service, "/routes", {"routes": routes}).status_code == 200
    service.post(batch("1", [step(1)], name="big-run", project="theirs"))
    service.post(batch("2", [step(1)], name="big-run", project="mine"))
    service.post(batch("3", [step(1)], name="small-run", project="mine"))
    assert eventually(PATIENCE, lambda: len(receiver.got()) == 4)
    came = sorted((one["path"], one["body"]["data"]["run"]["id"]) for one in receiver.got())
    assert came == [("/hook/all", r) for r in "123"] + [("/hook/mine", "2")]


NONSENSE: list[tuple[str, Any, str]] = [
    ("/channels/x", {"url": "ftp://example.org"}, "body.url"),
    ("/channels/x", {"url": "https://me:word@example.org"}, "body.url"),
    ("/channels/x", {"url": "https://example.org", "secrets": ["whsec_short"]}, "body.secrets"),
    ("/channels/x", {"kind": "pigeon", "url": "https://example.org"}, "body"),
    ("/channels/x", {"kind": "apprise", "url": "nothing"}, "body.url"),
    ("/channels/x", {"url": "https://example.org", "odd": 1}, "body.odd"),
    ("/routes", {"routes": [{"channels": ["nobody"]}]}, "body.routes"),
    ("/routes", {"routes": [{"channels": []}]}, "body.routes.0.channels"),
]


def test_what_makes_no_sense_is_refused_by_name(service: Service) -> None:
    for path, said, field in NONSENSE:
        answer = put(service, path, said)
        assert answer.status_code == 422, answer.text
        assert [error["field"] for error in answer.json()["errors"]] == [field]
        assert "word" not in answer.text.replace("password", "")


# ---------------------------------------------------------------- links


@pytest.fixture
def link(receiver: Receiver, tmp_path: Path) -> Iterator[str]:
    """The link in a message about a run, to a service that asks everybody else for a token."""
    guarded = {"access": "token", "admin_token": "t" * 40, "public_url": "https://monitor.example"}
    with running_service(tmp_path / "a.db", **told_to(receiver, **guarded)) as running:
        running.post(batch("r", [step(1)]), Authorization=f"Bearer {'t' * 40}")
        assert eventually(PATIENCE, lambda: bool(receiver.alerts()))
        (finding,) = receiver.alerts()[0]["data"]["findings"]
        assert finding["acknowledge_url"].startswith("https://monitor.example/alerts/answer/")
        yield finding["acknowledge_url"].replace("https://monitor.example", running.url)


def test_whoever_has_the_link_may_answer_and_opening_it_does_nothing(link: str) -> None:
    page = httpx2.get(link)
    assert page.status_code == 200 and RULE in page.text and "Acknowledged" not in page.text
    assert "Acknowledged" not in httpx2.get(link).text
    said = httpx2.post(link, data={"do": "acknowledge", "note": "<b>known</b>", "by": "Ada"})
    assert said.status_code == 200
    assert "Acknowledged by Ada: &lt;b&gt;known&lt;/b&gt;" in re.sub(r"\s+", " ", said.text)


def test_snoozing_needs_no_reason_and_ends(link: str) -> None:
    said = httpx2.post(link, data={"do": "snooze", "hours": "8"})
    assert said.status_code == 200 and "snoozed for 8 hours" in said.text and "until" in said.text
    for wrong in ({"do": "snooze", "hours": "9"}, {"do": "acknowledge"}, {}):
        assert httpx2.post(link, data=wrong).status_code == 422


def test_a_forged_link_and_another_site_get_nothing(link: str) -> None:
    signed, signature = link.rsplit(".", 1)
    # at its beginning: some bits of its last letter mean nothing
    altered = f"{signed}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}"
    for forged in (altered, link + "x", signed, link[:-40]):
        assert httpx2.get(forged).status_code == 404
        assert httpx2.post(forged, data={"do": "snooze", "hours": "8"}).status_code == 404
    foreign = {"Sec-Fetch-Site": "cross-site"}
    snooze = {"do": "snooze", "hours": "8"}
    assert httpx2.post(link, data=snooze, headers=foreign).status_code == 403
    assert "Acknowledged" not in httpx2.get(link).text


# ---------------------------------------------------------------- the command line


def gradledger(
    service: Service, receiver: Receiver, *arguments: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    """``gradledger alerts``, on the service's database and with its settings."""
    named = {**told_to(receiver, alert_channels=[]), **settings}
    env = {**os.environ, **{f"GRADLEDGER_{k.upper()}": v for k, v in named.items()}}
    return command.gradledger("alerts", *arguments, "--db", service.database, environment=env)


def times(receiver: Receiver, message: str) -> int:
    """How often one message came."""
    return [one["id"] for one in receiver.got()].count(message)


def test_the_command_line_tries_shows_and_sends_again(service: Service, receiver: Receiver) -> None:
    put(service, "/channels/hook", {"url": receiver.url, "secrets": [SECRET]})
    assert "hook" in gradledger(service, receiver, "channels").stdout
    tried = gradledger(service, receiver, "test", "hook")
    assert tried.returncode == 0 and "delivered (204)" in tried.stdout, tried
    receiver.behave({"status": 500})
    tried = gradledger(service, receiver, "test", "hook")
    assert tried.returncode == 1 and "failed (500)" in tried.stdout
    receiver.behave({"status": 204})
    (dead,) = sent(service, state="dead")
    assert dead["id"] in gradledger(service, receiver, "list", "--state", "dead").stdout
    assert gradledger(service, receiver, "replay", dead["id"]).returncode == 0
    assert eventually(PATIENCE, lambda: times(receiver, dead["id"]) == 2)
    assert not sent(service, state="dead")
    missing = gradledger(service, receiver, "test", "nobody")
    assert missing.returncode == 2 and "there is hook" in missing.stderr


def test_a_finding_that_passes_is_told_as_resolved_and_what_is_back_as_regressed(
    service: Service, receiver: Receiver
) -> None:
    put(service, "/channels/hook", {"url": receiver.url, "secrets": [SECRET]})

    def reasons() -> list[str]:
        return [f["reason"] for one in receiver.alerts() for f in one["data"]["findings"]]

    service.post(batch("r", [step(1)]))
    assert eventually(PATIENCE, lambda: reasons() == ["new"])
    service.post(batch("r", map(fair_step, range(2, 30))))
    assert eventually(PATIENCE, lambda: reasons() == ["new", "resolved"])
    service.post(batch("r", [step(30)]))
    assert eventually(PATIENCE, lambda: reasons() == ["new", "resolved", "regressed"])


def test_the_links_of_a_message_lead_to_the_run_and_to_the_rule(
    service: Service, receiver: Receiver
) -> None:
    put(service, "/channels/hook", {"url": receiver.url, "secrets": [SECRET]})
    service.post(batch("r", [step(1)]))
    assert eventually(PATIENCE, lambda: bool(receiver.alerts()))
    data = receiver.alerts()[0]["data"]
    for url, shows in ((data["run"]["url"], "a run"), (data["findings"][0]["rule_url"], RULE)):
        page = httpx2.get(url.replace("http://127.0.0.1:0", service.url))
        assert page.status_code == 200 and shows in page.text, url
    assert httpx2.get(f"{service.url}/rules/nobody.knows").status_code == 404
