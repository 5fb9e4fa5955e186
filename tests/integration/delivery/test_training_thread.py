"""The training thread never waits: the service may hang, refuse or be down."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers.misbehaving import is_silent, says, server

from .conftest import Scripts

STEPS = 200

# Records the audit events of the main thread while it trains, and with a profiler every call of the
# hooks that may wait. The first step, which starts the threads, is not included.
SPIED = f"""
import json, threading
main, asked = threading.main_thread().ident, []
WAITING = {{"acquire", "wait", "join", "select", "poll", "connect", "recv", "recv_into", "send",
            "sendall", "fsync", "flush", "write", "sleep", "synchronize"}}
ASKING = ("socket.", "open", "os.", "time.sleep", "subprocess.", "http.", "urllib.")
watching = False

def audited(event, details):
    if watching and event.startswith(ASKING) and threading.get_ident() == main:
        asked.append(event)

def profiled(frame, event, what):
    ours = frame.f_globals.get("__name__", "").startswith("gradledger")
    if event == "c_call" and ours and what.__name__ in WAITING:
        asked.append(f"{{what.__name__}} in {{frame.f_code.co_name}}")

train(1)
sys.addaudithook(audited)
sys.setprofile(profiled)
watching, began = True, time.monotonic()
train({STEPS}, pause=0)
watching, took = False, time.monotonic() - began
sys.setprofile(None)
print(json.dumps({{"asked": asked, "took": took}}))
"""


def recorded_calls(scripts: Scripts, url: str) -> dict[str, Any]:
    """The calls that the script recorded, and its time."""
    done = scripts.run(SPIED, url)
    assert done.status == 0, done.err
    payload: dict[str, Any] = json.loads(done.out)
    return payload


@pytest.mark.parametrize("behaviour", [is_silent, says(503)], ids=["hanging", "refusing"])
def test_no_call_of_ours_waits_on_the_training_thread(scripts: Scripts, behaviour: Any) -> None:
    with server(behaviour) as service:
        result = recorded_calls(scripts, service.url)
        assert service.requests
    assert [call for call in result["asked"] if call != "time.sleep"] == []
    assert result["took"] < 10  # 200 steps of a linear layer under a profiler: well under a second
    assert scripts.on_disk() == STEPS + 1


def test_without_a_service_it_is_the_same(scripts: Scripts, nowhere: str) -> None:
    result = recorded_calls(scripts, nowhere)
    assert [call for call in result["asked"] if call != "time.sleep"] == []
    assert scripts.on_disk() == STEPS + 1


def test_the_spy_sees_what_waits(scripts: Scripts, nowhere: str) -> None:
    waits = """
from gradledger import ledger
exec("def wait(lock):\\n lock.acquire()\\n open('/dev/null').close()", vars(ledger))
before = train
def train(*steps, **more):
    before(*steps, **more)
    ledger.wait(threading.Lock())
"""
    done = scripts.run(waits + SPIED, nowhere)
    assert json.loads(done.out)["asked"][-2:] == ["acquire in wait", "open"]
