"""The training thread never waits: the service may hang, refuse or be down."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gradledger.delivery import pipeline
from helpers.misbehaving import is_silent, says, server

from .conftest import Scripts

STEPS = 60

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
    waits = event == "c_call" and function.__name__ in WAITING
    if waits and ours and not isinstance(function.__self__, str):  # str.join
        calls.append(f"{{function.__name__}} in {{frame.f_code.co_name}}")

train(1)
sys.addaudithook(audited)
sys.setprofile(profiled)
watching = True
train({STEPS})
watching = False
sys.setprofile(None)
print(json.dumps(calls))
# at the end, a service that hangs
pipeline.EXIT_SECONDS = pipeline.EXIT_SECONDS_UNANSWERED = {pipeline.EXIT_SECONDS_UNANSWERED}
"""


def recorded_calls(scripts: Scripts, url: str, before: str = "") -> list[str]:
    """The calls that the script recorded."""
    done = scripts.run(before + RECORDS_CALLS, url)
    assert done.returncode == 0, done.stderr
    calls: list[str] = json.loads(done.stdout)
    return calls


@pytest.mark.parametrize("behaviour", [is_silent, says(503)], ids=["hanging", "refusing"])
def test_no_call_of_the_hooks_waits_on_the_training_thread(
    scripts: Scripts, behaviour: Any
) -> None:
    with server(behaviour) as service:
        assert recorded_calls(scripts, service.url) == []
        assert service.requests
    assert scripts.on_disk() == STEPS + 1


def test_without_a_service_no_call_waits_either(scripts: Scripts, nowhere: str) -> None:
    assert recorded_calls(scripts, nowhere) == []
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
    assert recorded_calls(scripts, nowhere, waits) == ["acquire in wait", "open"]
