"""Alerts arrive, whatever the receiver does and whenever the service dies: once, or by one id."""

from __future__ import annotations

from pathlib import Path

from helpers.batches import batch, eventually, step
from helpers.receiver import Receiver
from helpers.service import running_service
from integration.alerts.conftest import told_to

RULE = "reduction.token_weights_unequal"


def test_an_error_is_told_at_once_and_the_receiver_can_verify_it(
    receiver: Receiver, tmp_path: Path
) -> None:
    with running_service(tmp_path / "a.db", **told_to(receiver)) as service:
        service.post(batch("r", [step(1)], name="a run", project="a project"))
        assert eventually(10, lambda: bool(receiver.got()))
        (came,) = receiver.got()
    assert came["verified"] and came["id"].startswith("msg_")
    said = came["body"]
    assert said["type"] == "gradledger.alert" and said["timestamp"].endswith("Z")
    run, (finding,) = said["data"]["run"], said["data"]["findings"]
    assert (run["id"], run["name"], run["project"]) == ("r", "a run", "a project")
    assert (finding["rule"], finding["reason"], finding["since_step"]) == (RULE, "new", 1)
    assert finding["evidence"]["misallocation"] == 0.25
    assert finding["fix"] and finding["certainty"].startswith("exact")
