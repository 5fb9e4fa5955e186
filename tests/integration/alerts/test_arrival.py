"""Alerts arrive, whatever the receiver does and whenever the service dies: once, or by one id."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx2

from helpers.batches import batch, eventually, fair_step, step
from helpers.receiver import Receiver, receiving
from helpers.service import running_service, start_service
from integration.alerts.conftest import PATIENCE, sent, told_to

RULE = "reduction.token_weights_unequal"


def test_an_error_is_told_at_once_and_the_receiver_can_verify_it(
    receiver: Receiver, tmp_path: Path
) -> None:
    with running_service(tmp_path / "a.db", **told_to(receiver)) as service:
        service.post(batch("r", [step(1)], name="a run", project="a project"))
        assert eventually(PATIENCE, lambda: bool(receiver.got()))
        (came,) = receiver.got()
    assert came["verified"] and came["id"].startswith("msg_")
    said = came["body"]
    assert said["type"] == "gradledger.alert" and said["timestamp"].endswith("Z")
    run, (finding,) = said["data"]["run"], said["data"]["findings"]
    assert (run["id"], run["name"], run["project"]) == ("r", "a run", "a project")
    assert (finding["rule"], finding["reason"], finding["since_step"]) == (RULE, "new", 1)
    assert finding["evidence"]["misallocation"] == 0.25
    assert finding["fix"] and finding["certainty"].startswith("exact")


def told_runs(receiver: Receiver) -> list[str]:
    """Runs that were told of, in order, each message once."""
    return [one["data"]["run"]["id"] for one in receiver.alerts()]


def _ids(receiver: Receiver) -> list[str]:
    return [one["id"] for one in receiver.got()]


def test_a_receiver_that_fails_in_every_way_is_told_in_the_end_by_one_id(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.behave(
        {"status": 500},
        {"close": True},
        {"hang": True},
        {"status": 302, "headers": {"location": receiver.url + "/elsewhere"}},
        {"status": 429, "headers": {"retry-after": "1"}},
        {"status": 204},
    )
    with running_service(tmp_path / "a.db", **told_to(receiver, alert_timeout=5)) as service:
        service.post(batch("r", [step(1)]))
        assert eventually(PATIENCE, lambda: len(receiver.got()) == 6)
        assert eventually(PATIENCE, lambda: sent(service)[0]["state"] == "delivered")
        (alert,) = sent(service)
    came = receiver.got()
    assert {one["id"] for one in came} == {alert["id"]} and all(one["verified"] for one in came)
    assert {one["path"] for one in came} == {"/hook"}  # the redirect led nowhere
    assert len({json.dumps(one["body"]) for one in came}) == 1
    tried = [(one["outcome"], one["status"]) for one in alert["attempts"]]
    assert tried == [
        ("failed", 500), ("failed", None), ("failed", None), ("failed", 302), ("failed", 429),
        ("delivered", 204),
    ]  # fmt: skip
    details = [one["detail"] for one in alert["attempts"]]
    assert "no answer within 5 s" in details[2] and "redirects" in details[3]
    assert came[5]["at"] - came[4]["at"] >= 0.9  # it asked for a second


def test_a_slow_receiver_holds_up_nobody_else(receiver: Receiver, tmp_path: Path) -> None:
    with receiving(tmp_path / "other") as other:
        receiver.behave({"hang": True})
        both = [receiver.channel("hangs"), other.channel("works")]
        settings = told_to(receiver, alert_channels=both, alert_timeout=30)
        with running_service(tmp_path / "a.db", **settings) as service:
            for name in ("1", "2", "3"):
                service.post(batch(name, [step(1)]))
            assert eventually(PATIENCE, lambda: sorted(told_runs(other)) == ["1", "2", "3"])


def test_a_receiver_that_was_gone_is_told_all_it_missed_in_order(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.vanish()
    settings = told_to(receiver, alert_retries=[0.3] * 3 + [60.0])
    with running_service(tmp_path / "a.db", **settings) as service:
        service.post(batch("r", [step(1)]))
        service.post(batch("s", [step(1)]))
        assert eventually(PATIENCE, lambda: all(len(one["attempts"]) == 4 for one in sent(service)))
        service.post(batch("r", map(fair_step, range(2, 30))))
        assert eventually(PATIENCE, lambda: len(sent(service)) == 3)
        receiver.start()
        service.post(batch("t", [step(1)]))  # the next message finds the door open again
        assert eventually(PATIENCE, lambda: len(receiver.alerts()) == 4)
    of_r = [one["data"] for one in receiver.alerts() if one["data"]["run"]["id"] == "r"]
    assert [data["findings"][0]["reason"] for data in of_r] == ["new", "resolved"]


def test_gone_switches_a_channel_off_and_a_person_switches_it_on_and_replays(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.behave({"status": 410})
    with running_service(tmp_path / "a.db", **told_to(receiver)) as service:
        service.post(batch("r", [step(1)]))
        assert eventually(PATIENCE, lambda: bool(sent(service, state="dead")))
        (channel,) = service.get("/alerts/channels").json()["channels"]
        assert channel["disabled"] and "410" in channel["why"]
        service.post(batch("s", [step(1)]))
        receiver.behave({"status": 204})
        (dead,) = sent(service, state="dead")
        place = f"{service.url}/api/v1/alerts"
        assert httpx2.put(f"{place}/channels/hook/switch", json={"on": True}).status_code == 200
        assert httpx2.post(f"{place}/{dead['id']}/replay").status_code == 200
        assert eventually(PATIENCE, lambda: {"r", "s"} == set(told_runs(receiver)))
        ids = [dead["id"], dead["id"]]
        assert eventually(PATIENCE, lambda: ids == [i for i in _ids(receiver) if i == dead["id"]])


def test_what_no_attempt_brings_there_is_dead_listed_and_counted(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.behave({"status": 500})
    settings = told_to(receiver, alert_retries=[0.1, 0.1])
    with running_service(tmp_path / "a.db", **settings) as service:
        service.post(batch("r", [step(1)]))
        assert eventually(PATIENCE, lambda: bool(sent(service, state="dead")))
        (dead,) = sent(service, state="dead")
        assert [one["status"] for one in dead["attempts"]] == [500, 500, 500]

        def said(metric: str) -> bool:
            return metric in httpx2.get(f"{service.url}/metrics").text

        failed = 'gradledger_alert_attempts_total{channel="hook",outcome="failed"} 3.0'
        assert eventually(PATIENCE, lambda: said(failed))
        assert said('gradledger_alerts{channel="hook",state="dead"} 1.0')


def test_whenever_the_service_is_killed_every_alert_arrives_and_duplicates_have_one_id(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.behave({"status": 204, "delay": 0.15})
    settings = told_to(receiver, alert_timeout=5)
    runs = [f"r{number}" for number in range(6)]
    for number, name in enumerate(runs):
        service = start_service(tmp_path / "a.db", **settings)
        service.post(batch(name, [step(1)]))
        time.sleep(0.05 * number)  # before, while and after it is sent
        service.kill()
    with running_service(tmp_path / "a.db", **settings) as service:
        assert eventually(PATIENCE, lambda: set(told_runs(receiver)) == set(runs))
        assert eventually(PATIENCE, lambda: not sent(service, state="waiting"))
    ids: dict[str, set[str]] = {}
    for one in receiver.got():
        ids.setdefault(one["body"]["data"]["run"]["id"], set()).add(one["id"])
    assert all(len(found) == 1 for found in ids.values())


def test_private_addresses_are_refused_unless_they_are_allowed(
    receiver: Receiver, tmp_path: Path
) -> None:
    settings = told_to(receiver, alert_networks="10.0.0.0/8", alert_retries=[])
    named = receiver.channel("name", url=receiver.url.replace("127.0.0.1", "localhost"))
    settings |= {"alert_channels": json.dumps([receiver.channel(), named])}
    with running_service(tmp_path / "a.db", **settings) as service:
        service.post(batch("r", [step(1)]))
        assert eventually(PATIENCE, lambda: len(sent(service, state="dead")) == 2)
        details = [one["attempts"][0]["detail"] for one in sent(service)]
    assert all("not a public address" in detail for detail in details)
    assert receiver.got() == []
