"""Alerts are delivered under one id, whatever fails: the receiver, or the service."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from pathlib import Path

from sqlalchemy import update

from gradledger_monitor.store.alerts.outbox import WAITING
from gradledger_monitor.store.alerts.tables import alerts
from gradledger_monitor.store.database import Store
from helpers import http
from helpers.batches import batch, eventually, fair_step, step
from helpers.patience import HANGS
from helpers.receiver import FINE, Receiver, receiving
from helpers.service import Service, running_service, start_service
from integration.alerts.conftest import messages, sending_to

RULE = "reduction.token_weights_unequal"
NEVER = 2 * HANGS  # seconds; a test that waits for it fails


def test_an_error_is_sent_at_once_with_a_valid_signature(
    receiver: Receiver, tmp_path: Path
) -> None:
    with running_service(tmp_path / "a.db", **sending_to(receiver)) as service:
        service.post(batch("r", [step(1)], name="a run", project="a project"))
        assert eventually(HANGS, lambda: bool(receiver.got()))
        (request,) = receiver.got()
    assert request["verified"] and request["id"].startswith("msg_")
    body = request["body"]
    assert body["type"] == "gradledger.alert" and body["timestamp"].endswith("Z")
    run, (finding,) = body["data"]["run"], body["data"]["findings"]
    assert (run["id"], run["name"], run["project"]) == ("r", "a run", "a project")
    assert (finding["rule"], finding["reason"], finding["since_step"]) == (RULE, "new", 1)
    assert finding["evidence"]["misallocation"] == 0.25
    assert finding["fix"] and finding["certainty"].startswith("exact")


def runs_received(receiver: Receiver) -> list[str]:
    """The runs of the received messages, in order, each message once."""
    return [one["data"]["run"]["id"] for one in receiver.alerts()]


def _ids(receiver: Receiver) -> list[str]:
    return [one["id"] for one in receiver.got()]


def test_a_message_is_retried_under_one_id_until_the_receiver_accepts_it(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.behave(
        {"status": 500},
        {"close": True},
        {"status": 302, "headers": {"location": receiver.url + "/elsewhere"}},
        {"status": 429},
        {"status": 204},
    )
    with running_service(tmp_path / "a.db", **sending_to(receiver)) as service:
        service.post(batch("r", [step(1)]))
        assert eventually(HANGS, lambda: len(receiver.got()) == 5)
        assert eventually(HANGS, lambda: messages(service)[0]["state"] == "delivered")
        (alert,) = messages(service)
    requests = receiver.got()
    assert {r["id"] for r in requests} == {alert["id"]} and all(r["verified"] for r in requests)
    assert {r["path"] for r in requests} == {"/hook"}  # the redirect was not followed
    assert len({json.dumps(r["body"]) for r in requests}) == 1
    outcomes = [(one["outcome"], one["status"]) for one in alert["attempts"]]
    assert outcomes == [
        ("failed", 500), ("failed", None), ("failed", 302), ("failed", 429), ("delivered", 204),
    ]  # fmt: skip
    assert "redirects" in alert["attempts"][2]["detail"]


def test_a_slow_receiver_does_not_delay_other_channels(receiver: Receiver, tmp_path: Path) -> None:
    with receiving(tmp_path / "other") as other:
        receiver.behave({"hang": True})
        both = [receiver.channel("hangs"), other.channel("works")]
        settings = sending_to(receiver, alert_channels=both, alert_timeout=120)
        with running_service(tmp_path / "a.db", **settings) as service:
            for name in ("1", "2", "3"):
                service.post(batch(name, [step(1)]))
            assert eventually(HANGS, lambda: sorted(runs_received(other)) == ["1", "2", "3"])
            hanging = [one for one in messages(service) if one["channel"] == "hangs"]
            attempts = [attempt for one in hanging for attempt in one["attempts"]]
            assert {attempt["outcome"] for attempt in attempts} == {None}  # still in flight
            service.kill()  # else its end waits for them


def test_after_an_outage_a_receiver_gets_all_messages_in_order(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.vanish()
    settings = sending_to(receiver, alert_retries=[0.3] * 3 + [NEVER])
    with running_service(tmp_path / "a.db", **settings) as service:
        service.post(batch("r", [step(1)]))
        service.post(batch("s", [step(1)]))
        four_each = [4, 4]
        assert eventually(
            HANGS, lambda: [len(one["attempts"]) for one in messages(service)] == four_each
        )
        service.post(batch("r", map(fair_step, range(2, 30))))
        assert eventually(HANGS, lambda: len(messages(service)) == 3)
        receiver.start()
        service.post(batch("t", [step(1)]))  # its delivery triggers the others
        assert eventually(HANGS, lambda: len(receiver.alerts()) == 4)
    of_r = [one["data"] for one in receiver.alerts() if one["data"]["run"]["id"] == "r"]
    assert [data["findings"][0]["reason"] for data in of_r] == ["new", "resolved"]


def test_410_disables_a_channel_until_it_is_enabled_and_replayed(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.behave({"status": 410})
    with running_service(tmp_path / "a.db", **sending_to(receiver)) as service:
        service.post(batch("r", [step(1)]))
        assert eventually(HANGS, lambda: bool(messages(service, state="dead")))
        (channel,) = service.get("/alerts/channels").json()["channels"]
        assert channel["disabled"] and "410" in channel["why"]
        service.post(batch("s", [step(1)]))
        receiver.behave({"status": 204})
        (dead,) = messages(service, state="dead")
        url = f"{service.url}/api/v1/alerts"
        assert http.put(f"{url}/channels/hook/switch", json={"on": True}).status_code == 200
        assert http.post(f"{url}/{dead['id']}/replay").status_code == 200
        assert eventually(HANGS, lambda: {"r", "s"} == set(runs_received(receiver)))
        ids = [dead["id"], dead["id"]]
        assert eventually(HANGS, lambda: ids == [i for i in _ids(receiver) if i == dead["id"]])


def test_a_message_whose_attempts_all_fail_is_dead_and_counted(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.behave({"status": 500})
    settings = sending_to(receiver, alert_retries=[0.1, 0.1])
    with running_service(tmp_path / "a.db", **settings) as service:
        service.post(batch("r", [step(1)]))
        assert eventually(HANGS, lambda: bool(messages(service, state="dead")))
        (dead,) = messages(service, state="dead")
        assert [one["status"] for one in dead["attempts"]] == [500, 500, 500]

        def has(metric: str) -> bool:
            return metric in http.get(f"{service.url}/metrics").text

        failed = 'gradledger_alert_attempts_total{channel="hook",outcome="failed"} 3.0'
        assert eventually(HANGS, lambda: has(failed))
        assert has('gradledger_alerts{channel="hook",state="dead"} 1.0')


def expire_claims(service: Service) -> None:
    """Let the claims of a killed service expire, which takes ``LEASE_MARGIN`` and its timeout."""
    with closing(Store(service.database)) as store, store.writing() as connection:
        connection.execute(update(alerts).where(alerts.c.state == WAITING).values(due=0.0))


def test_every_alert_is_delivered_under_one_id_although_the_service_is_killed(
    receiver: Receiver, tmp_path: Path
) -> None:
    settings = sending_to(receiver)

    def is_received(service: Service, run: str) -> bool:
        return run in runs_received(receiver)

    def is_delivered(service: Service, run: str) -> bool:
        delivered = messages(service, state="delivered")
        return run in [one["document"]["data"]["run"]["id"] for one in delivered]

    moments = {"before": None, "while": is_received, "after": is_delivered}  # it is sent
    for run, moment in moments.items():
        receiver.behave({"hang": True} if moment is is_received else {"status": 204})
        service = start_service(tmp_path / "a.db", **settings)
        service.post(batch(run, [step(1)]))
        assert moment is None or eventually(HANGS, partial(moment, service, run))
        service.kill()
        expire_claims(service)
    receiver.behave(*FINE)
    with running_service(tmp_path / "a.db", **settings) as service:
        assert eventually(HANGS, lambda: set(runs_received(receiver)) == set(moments))
        assert eventually(HANGS, lambda: not messages(service, state="waiting"))
    ids: dict[str, set[str]] = {}
    for one in receiver.got():
        ids.setdefault(one["body"]["data"]["run"]["id"], set()).add(one["id"])
    assert all(len(ids_of_run) == 1 for ids_of_run in ids.values())


def test_private_addresses_are_refused_unless_allowed(receiver: Receiver, tmp_path: Path) -> None:
    settings = sending_to(receiver, alert_networks="10.0.0.0/8", alert_retries=[])
    named = receiver.channel("name", url=receiver.url.replace("127.0.0.1", "localhost"))
    settings |= {"alert_channels": json.dumps([receiver.channel(), named])}
    with running_service(tmp_path / "a.db", **settings) as service:
        service.post(batch("r", [step(1)]))
        assert eventually(HANGS, lambda: len(messages(service, state="dead")) == 2)
        details = [one["attempts"][0]["detail"] for one in messages(service)]
    assert all("not a public address" in detail for detail in details)
    assert receiver.got() == []
