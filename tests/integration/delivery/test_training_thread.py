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
RECORDS_CALLS = f"""
import json, threading
main, calls = threading.main_thread().ident, []
WAITING = {{"acquire", "wait", "join", "select", "poll", "connect", "recv", "recv_into", "send",
            "sendall", "fsync", "flush", "write", "sleep", "synchronize"}}
SYSTEM_EVENTS = ("socket.", "open", "os.", "time.sleep", "subprocess.", "http.", "urllib.")
watching = False

def audited(event, details):
    if watching and event.startswith(SYSTEM_EVENTS) and threading.get_ident() == main:
        calls.append(event)

def profiled(frame, event, function):
    ours = frame.f_globals.get("__name__", "").startswith("gradledger")
    if event == "c_call" and ours and function.__name__ in WAITING:
        calls.append(f"{{function.__name__}} in {{frame.f_code.co_name}}")

train(1)
sys.addaudithook(audited)
sys.setprofile(profiled)
watching, began = True, time.monotonic()
train({STEPS}, pause=0)
watching, took = False, time.monotonic() - began
sys.setprofile(None)
print(json.dumps({{"calls": calls, "took": took}}))
"""


def recorded_calls(scripts: Scripts, url: str) -> dict[str, Any]:
    """The calls that the script recorded, and its time."""
    done = scripts.run(RECORDS_CALLS, url)
    assert done.status == 0, done.err
    payload: dict[str, Any] = json.loads(done.out)
    return payload


@pytest.mark.parametrize("behaviour", [is_silent, says(503)], ids=["hanging", "refusing"])
def test_no_call_of_the_hooks_waits_on_the_training_thread(
    scripts: Scripts, behaviour: Any
) -> None:
    with server(behaviour) as service:
        result = recorded_calls(scripts, service.url)
        assert service.requests
    assert [call for call in result["calls"] if call != "time.sleep"] == []
    assert result["took"] < 10  # 200 steps of a linear layer under a profiler: well under a second
    assert scripts.on_disk() == STEPS + 1


def test_without_a_service_no_call_waits_either(scripts: Scripts, nowhere: str) -> None:
    result = recorded_calls(scripts, nowhere)
    assert [call for call in result["calls"] if call != "time.sleep"] == []
    assert scripts.on_disk() == STEPS + 1


def test_calls_that_wait_are_recorded(scripts: Scripts, nowhere: str) -> None:
    waits = """
from gradledger import guard
exec("def wait(lock):\\n lock.acquire()\\n open('/dev/null').close()", vars(guard))
before = train
def train(*steps, **more):
    before(*steps, **more)
    guard.wait(threading.Lock())
"""
    done = scripts.run(waits + RECORDS_CALLS, nowhere)
    assert json.loads(done.out)["calls"][-2:] == ["acquire in wait", "open"]
