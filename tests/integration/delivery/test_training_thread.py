"""The training thread waits for nothing: not for a service that hangs, refuses, or is not there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers.misbehaving import is_silent, says, server

from .conftest import Scripts

STEPS = 200

# Notes what the main thread asks of the system while it trains, by audit event, and every call of
# ours that may wait, by the profiler. The first step, at which the threads start, is let pass.
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


def told(scripts: Scripts, url: str) -> dict[str, Any]:
    """What the script saw of itself."""
    done = scripts.run(SPIED, url)
    assert done.status == 0, done.err
    said: dict[str, Any] = json.loads(done.out)
    return said


@pytest.mark.parametrize("behaviour", [is_silent, says(503)], ids=["hanging", "refusing"])
def test_no_call_of_ours_waits_on_the_training_thread(scripts: Scripts, behaviour: Any) -> None:
    with server(behaviour) as service:
        seen = told(scripts, service.url)
        assert service.requests
    assert [call for call in seen["asked"] if call != "time.sleep"] == []
    assert seen["took"] < 10  # 200 steps of a linear layer under a profiler: well under a second
    assert scripts.on_disk() == STEPS + 1


def test_without_a_service_it_is_the_same(scripts: Scripts, nowhere: str) -> None:
    seen = told(scripts, nowhere)
    assert [call for call in seen["asked"] if call != "time.sleep"] == []
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
