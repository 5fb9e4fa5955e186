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

from helpers import command, http
from helpers.batches import batch, eventually, fair_step, step
from helpers.patience import HANGS
from helpers.receiver import OLD_SECRET, SECRET, Receiver
from helpers.service import Service, running_service
from integration.alerts.conftest import messages, sending_to

RULE = "reduction.token_weights_unequal"
SECRETS = (SECRET, OLD_SECRET, "hidden-in-the-path", "a-bearer-token")


@pytest.fixture
def service(receiver: Receiver, tmp_path: Path) -> Iterator[Service]:
    """A service without channels in its settings."""
    with running_service(tmp_path / "a.db", **sending_to(receiver, alert_channels=[])) as running:
        yield running


def put(service: Service, path: str, content: Any) -> httpx2.Response:
    """PUT to the alerts API."""
    return http.put(f"{service.url}/api/v1/alerts{path}", json=content)


def post(service: Service, path: str) -> httpx2.Response:
    """POST to the alerts API."""
    return http.post(f"{service.url}/api/v1/alerts{path}")


def test_a_channel_is_created_tested_and_used(service: Service, receiver: Receiver) -> None:
    config = {k: v for k, v in receiver.channel().items() if k != "name"}
    response = put(service, "/channels/hook", config)
    assert response.status_code == 200 and response.json()["secret"] is None
    result = post(service, "/channels/hook/test").json()
    assert (result["outcome"], result["status"]) == ("delivered", 204)
    (test,) = receiver.got()
    assert test["verified"] and test["body"]["type"] == "gradledger.test"
    service.post(batch("r", [step(1)]))
    assert eventually(HANGS, lambda: len(receiver.alerts()) == 1)


def test_a_secret_is_shown_only_once(service: Service, receiver: Receiver) -> None:
    secret = put(service, "/channels/generated", {"url": receiver.url}).json()["secret"]
    assert secret.startswith("whsec_")
    config = {"url": receiver.url + "/hidden-in-the-path", "bearer": "a-bearer-token"}
    put(service, "/channels/provided", {**config, "secrets": [SECRET, OLD_SECRET]})
    put(service, "/channels/slack", {"kind": "apprise", "url": "slack://hidden-in-the-path/b/c"})
    text = service.get("/alerts/channels").text + http.get(f"{service.url}/settings").text
    channels = service.get("/alerts/channels").json()["channels"]
    assert [channel["secrets"] for channel in channels] == [1, 2, 0]
    assert not [word for word in (*SECRETS, secret) if word in text]


def test_routes_filter_by_severity_rule_project_and_name(
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
    assert eventually(HANGS, lambda: len(receiver.got()) == 4)
    requests = sorted((r["path"], r["body"]["data"]["run"]["id"]) for r in receiver.got())
    assert requests == [("/hook/all", r) for r in "123"] + [("/hook/mine", "2")]


def found(service: Service, run: str) -> bool:
    """Whether the service has evaluated a run and found something."""
    response = service.get(f"/runs/{run}/findings")
    return response.status_code == 200 and bool(response.json()["findings"])


def skipped_findings(service: Service) -> list[int]:
    """Of each channel, how many open findings were not sent to it."""
    return [c["skipped_findings"] for c in service.get("/alerts/channels").json()["channels"]]


def test_a_new_channel_starts_now_and_sends_open_findings_on_request(
    service: Service, receiver: Receiver
) -> None:
    service.post(batch("before", [step(1)]))
    assert eventually(HANGS, lambda: found(service, "before"))
    put(service, "/channels/hook", {"url": receiver.url, "secrets": [SECRET]})
    assert skipped_findings(service) == [1]
    service.post(batch("after", [step(1)]))
    assert eventually(HANGS, lambda: len(receiver.alerts()) == 1)
    assert receiver.alerts()[0]["data"]["run"]["id"] == "after"
    assert "1 open finding from before" in gradledger(service, receiver, "channels").stdout
    response = post(service, "/channels/hook/open-findings")
    assert response.json() == {"findings": 1, "runs": 1}
    assert eventually(HANGS, lambda: len(receiver.alerts()) == 2)
    assert receiver.alerts()[1]["data"]["run"]["id"] == "before"
    assert skipped_findings(service) == [0]
    put(service, "/channels/hook/switch", {"on": False})
    assert post(service, "/channels/hook/open-findings").status_code == 409


def test_a_channel_in_the_settings_starts_when_the_service_has_it_first(
    receiver: Receiver, tmp_path: Path
) -> None:
    with running_service(tmp_path / "a.db", **sending_to(receiver, alert_channels=[])) as first:
        first.post(batch("before", [step(1)]))
        assert eventually(HANGS, lambda: found(first, "before"))
    for more in ([], [step(2)]):  # started twice: the second start changes nothing
        with running_service(tmp_path / "a.db", **sending_to(receiver)) as service:
            assert skipped_findings(service) == [1]
            service.post(batch("before", more))
    with running_service(tmp_path / "a.db", **sending_to(receiver)) as service:
        assert gradledger_sends_open(service, receiver) == "1 finding of 1 run queued"
        assert eventually(HANGS, lambda: len(receiver.alerts()) == 1)


def gradledger_sends_open(service: Service, receiver: Receiver) -> str:
    """What ``gradledger alerts send-open`` prints, up to the semicolon."""
    settings = {name: str(value) for name, value in sending_to(receiver).items()}
    printed = gradledger(service, receiver, "send-open", receiver.channel()["name"], **settings)
    return printed.stdout.partition(";")[0]


INVALID: list[tuple[str, Any, str]] = [
    ("/channels/x", {"url": "ftp://example.org"}, "body.url"),
    ("/channels/x", {"url": "https://me:word@example.org"}, "body.url"),
    ("/channels/x", {"url": "https://example.org", "secrets": ["whsec_short"]}, "body.secrets"),
    ("/channels/x", {"kind": "pigeon", "url": "https://example.org"}, "body"),
    ("/channels/x", {"kind": "apprise", "url": "nothing"}, "body.url"),
    ("/channels/x", {"url": "https://example.org", "odd": 1}, "body.odd"),
    ("/routes", {"routes": [{"channels": ["nobody"]}]}, "body.routes"),
    ("/routes", {"routes": [{"channels": []}]}, "body.routes.0.channels"),
]


def test_invalid_channels_and_routes_are_refused_with_the_field(service: Service) -> None:
    for path, content, field in INVALID:
        response = put(service, path, content)
        assert response.status_code == 422, response.text
        assert [error["field"] for error in response.json()["errors"]] == [field]
        assert "word" not in response.text.replace("password", "")


# ---------------------------------------------------------------- links


@pytest.fixture
def link(receiver: Receiver, tmp_path: Path) -> Iterator[str]:
    """The link in a message about a run, to a service that requires a token elsewhere."""
    guarded = {"access": "token", "admin_token": "t" * 40, "public_url": "https://monitor.example"}
    with running_service(tmp_path / "a.db", **sending_to(receiver, **guarded)) as running:
        running.post(batch("r", [step(1)]), Authorization=f"Bearer {'t' * 40}")
        assert eventually(HANGS, lambda: bool(receiver.alerts()))
        (finding,) = receiver.alerts()[0]["data"]["findings"]
        assert finding["acknowledge_url"].startswith("https://monitor.example/alerts/answer/")
        yield finding["acknowledge_url"].replace("https://monitor.example", running.url)


def test_the_link_alone_permits_acknowledging_and_a_get_changes_nothing(link: str) -> None:
    page = http.get(link)
    assert page.status_code == 200 and RULE in page.text and "Acknowledged" not in page.text
    assert "Acknowledged" not in http.get(link).text
    response = http.post(link, data={"do": "acknowledge", "note": "<b>fine</b>", "by": "Ada"})
    assert response.status_code == 200
    assert "Acknowledged by Ada: &lt;b&gt;fine&lt;/b&gt;" in re.sub(r"\s+", " ", response.text)


def test_a_snooze_needs_no_note_and_has_an_end(link: str) -> None:
    response = http.post(link, data={"do": "snooze", "hours": "8"})
    assert response.status_code == 200 and "until" in response.text
    assert "Snoozed for 8 hours" in response.text
    for wrong in ({"do": "snooze", "hours": "9"}, {"do": "acknowledge"}, {}):
        assert http.post(link, data=wrong).status_code == 422


def test_forged_links_and_other_sites_are_refused(link: str) -> None:
    signed, signature = link.rsplit(".", 1)
    # altered at its start, because some bits of its last character are not used
    altered = f"{signed}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}"
    for forged in (altered, link + "x", signed, link[:-40]):
        assert http.get(forged).status_code == 404
        assert http.post(forged, data={"do": "snooze", "hours": "8"}).status_code == 404
    foreign = {"Sec-Fetch-Site": "cross-site"}
    snooze = {"do": "snooze", "hours": "8"}
    assert http.post(link, data=snooze, headers=foreign).status_code == 403
    assert "Acknowledged" not in http.get(link).text


# ---------------------------------------------------------------- the command line


def gradledger(
    service: Service, receiver: Receiver, *arguments: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    """``gradledger alerts``, on the service's database and with its settings."""
    named = {**sending_to(receiver, alert_channels=[]), **settings}
    env = {**os.environ, **{f"GRADLEDGER_{k.upper()}": v for k, v in named.items()}}
    return command.gradledger("alerts", *arguments, "--db", service.database, environment=env)


def times(receiver: Receiver, message: str) -> int:
    """How often a message was received."""
    return [one["id"] for one in receiver.got()].count(message)


def test_the_command_line_tests_lists_and_replays(service: Service, receiver: Receiver) -> None:
    put(service, "/channels/hook", {"url": receiver.url, "secrets": [SECRET]})
    assert "hook" in gradledger(service, receiver, "channels").stdout
    result = gradledger(service, receiver, "test", "hook")
    assert result.returncode == 0 and "delivered (204)" in result.stdout, result
    receiver.behave({"status": 500})
    result = gradledger(service, receiver, "test", "hook")
    assert result.returncode == 1 and "failed (500)" in result.stdout
    receiver.behave({"status": 204})
    (dead,) = messages(service, state="dead")
    assert dead["id"] in gradledger(service, receiver, "list", "--state", "dead").stdout
    assert gradledger(service, receiver, "replay", dead["id"]).returncode == 0
    assert eventually(HANGS, lambda: times(receiver, dead["id"]) == 2)
    assert not messages(service, state="dead")
    missing = gradledger(service, receiver, "test", "nobody")
    assert missing.returncode == 2 and "Channels: hook" in missing.stderr


def test_resolutions_and_regressions_are_sent(service: Service, receiver: Receiver) -> None:
    put(service, "/channels/hook", {"url": receiver.url, "secrets": [SECRET]})

    def reasons() -> list[str]:
        return [f["reason"] for one in receiver.alerts() for f in one["data"]["findings"]]

    service.post(batch("r", [step(1)]))
    assert eventually(HANGS, lambda: reasons() == ["new"])
    service.post(batch("r", map(fair_step, range(2, 30))))
    assert eventually(HANGS, lambda: reasons() == ["new", "resolved"])
    service.post(batch("r", [step(30)]))
    assert eventually(HANGS, lambda: reasons() == ["new", "resolved", "regressed"])


def test_a_message_links_to_the_run_and_the_rule(service: Service, receiver: Receiver) -> None:
    put(service, "/channels/hook", {"url": receiver.url, "secrets": [SECRET]})
    service.post(batch("r", [step(1)]))
    assert eventually(HANGS, lambda: bool(receiver.alerts()))
    data = receiver.alerts()[0]["data"]
    for url, text in ((data["run"]["url"], "a run"), (data["findings"][0]["rule_url"], RULE)):
        page = http.get(url.replace("http://127.0.0.1:0", service.url))
        assert page.status_code == 200 and text in page.text, url
    assert http.get(f"{service.url}/rules/nobody.knows").status_code == 404
