"""A signal has the same effect with and without the hooks: handlers, status, time."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.batches import eventually
from helpers.patience import HANGS

from .conftest import WITH_HOOKS, Scripts

BARE = [sys.executable]
HOOKED = [*WITH_HOOKS, sys.executable]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]

DISPOSITIONS = """
handlers = {int(n): repr(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()}
train(3)
assert handlers == {
    int(n): repr(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()
}
print(sorted(handlers.items()), signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(signal.set_wakeup_fd(-1))
"""

# Each script takes its steps, prints that it is ready, and waits for a signal.
READY = "\ntrain(3)\ntime.sleep(0.3)\nprint('ready', flush=True)\n"
SLEEPS = READY + "time.sleep(60)\n"
EXITS = """
def save(number, frame):
    print("saved", number, flush=True)
    sys.exit(5)
"""
HANDLES = "signal.signal(signal.SIGTERM, save)\n"
REQUEUES = """
due = []
signal.signal(signal.SIGUSR1, lambda *_: due.append("checkpoint"))
train(3)
print("ready", flush=True)
while not due:
    train(1, pause=0.05)
print(*due)
sys.exit(0)
"""
RAISES = """
class Terminated(Exception):
    pass

def stop(number, frame):
    raise Terminated

signal.signal(signal.SIGTERM, stop)
train(3)
try:
    print("ready", flush=True)
    time.sleep(60)
except Terminated:
    print("saved")
signal.signal(signal.SIGTERM, signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGTERM)
"""
DEFERS = """
train(3)
time.sleep(0.3)  # threads that are there now do not inherit what follows
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready", flush=True)
time.sleep(1)
print("saved in one piece", flush=True)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
"""
DUMPS = """
import faulthandler
faulthandler.register(signal.SIGUSR1, file=open("stacks", "w"), all_threads=False)
train(3)
print("ready", flush=True)
time.sleep(0.5)
while not os.path.getsize("stacks"):
    time.sleep(0.05)
print("went on")
"""
PROGRAMS = {
    "no handler": (SLEEPS, signal.SIGTERM),
    "a handler that exits": (
        EXITS + "signal.signal(signal.SIGTERM, save)" + SLEEPS,
        signal.SIGTERM,
    ),
    "a handler set after training": (
        EXITS + READY.replace("print", "signal.signal(signal.SIGTERM, save); print") + SLEEPS,
        signal.SIGTERM,
    ),
    "a handler that raises and goes on": (RAISES, signal.SIGTERM),
    "ignored, then ended by another": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + READY
        + "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n",
        signal.SIGHUP,
    ),
    "deferred until a checkpoint is written": (DEFERS, signal.SIGTERM),
    "a checkpoint asked for, as by Slurm": (REQUEUES, signal.SIGUSR1),
    "stacks dumped by faulthandler": (DUMPS, signal.SIGUSR1),
    "interrupted": (SLEEPS, signal.SIGINT),
}


TRIES = 3  # a busy machine delays one of two processes


@dataclass
class Signalled:
    """How a program ended after a signal."""

    status: int
    out: str
    seconds: float


def signalled(scripts: Scripts, code: str, sent: int, command: list[str], url: str) -> Signalled:
    """Run a program, send it the signal once it is ready, and wait for its end."""
    process = scripts.start(code, url, *command)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", process.communicate()[1]
    if command is HOOKED:  # what it recorded in the last 0.2 s would be lost
        assert eventually(60, lambda: scripts.on_disk() >= 3)
    began = time.monotonic()
    process.send_signal(sent)
    rest, _ = process.communicate(timeout=HANGS)
    return Signalled(process.returncode, rest, time.monotonic() - began)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_signal_does_the_same_with_the_hooks_and_without(
    kind: str, scripts: Scripts, nowhere: str
) -> None:
    code, sent = PROGRAMS[kind]
    later = []
    for _ in range(TRIES):
        alone = signalled(scripts, code, sent, BARE, nowhere)
        hooked = signalled(scripts, code, sent, HOOKED, nowhere)
        assert (hooked.status, hooked.out) == (alone.status, alone.out)
        later.append(hooked.seconds - alone.seconds)
        if later[-1] < 1.0:
            break
    assert min(later) < 1.0


def test_no_disposition_mask_or_wakeup_descriptor_is_changed(
    scripts: Scripts, nowhere: str
) -> None:
    alone = scripts.run(DISPOSITIONS, nowhere, *BARE)
    hooked = scripts.run(DISPOSITIONS, nowhere, *HOOKED)
    assert alone.status == hooked.status == 0, hooked.err
    assert hooked.out == alone.out


# A rank that waits in a collective runs no Python code, so no Python signal handler either.
COLLECTIVE = """
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    F.cross_entropy(model(torch.randn(6, 4)), torch.randint(0, 3, (6,))).backward()
    optimizer.step()
    optimizer.zero_grad()
open(f"rank{dist.get_rank()}", "w").close()
dist.recv(torch.zeros(1), src=1 - dist.get_rank())  # both wait for the other
"""


def terminated_agent(scripts: Scripts, folder: Path, hooked: bool, url: str) -> tuple[int, float]:
    """The exit status of torchrun after SIGTERM, and how long it took."""
    folder.mkdir()
    own = Scripts(folder)
    scripts.started = own.started
    command = [*(HOOKED if hooked else BARE), *TORCHRUN]
    process = own.start(COLLECTIVE, url, *command)
    assert eventually(60, lambda: all((folder / f"rank{rank}").exists() for rank in (0, 1)))
    time.sleep(0.5)  # both wait, and have written what they recorded
    began = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=HANGS)
    if hooked:
        assert own.on_disk() == 6
    return process.returncode, time.monotonic() - began


def test_ranks_that_wait_in_a_collective_end_as_soon_as_without_the_hooks(
    scripts: Scripts, tmp_path: Path, nowhere: str
) -> None:
    later = []
    for number in range(TRIES):
        status, seconds = terminated_agent(scripts, tmp_path / f"alone{number}", False, nowhere)
        hooked, took = terminated_agent(scripts, tmp_path / f"hooked{number}", True, nowhere)
        assert hooked == status
        later.append(took - seconds)
        if later[-1] < 1.0:
            break
    assert min(later) < 1.0


def test_a_signal_that_only_the_script_unblocks_never_reaches_our_threads(
    scripts: Scripts, nowhere: str
) -> None:
    code = """
train(3)
threads = [t for t in os.listdir("/proc/self/task") if t != str(os.getpid())]
for task in threads:
    name = open(f"/proc/self/task/{task}/comm").read().strip()
    lines = open(f"/proc/self/task/{task}/status").read().splitlines()
    (blocked,) = [line.split()[1] for line in lines if line.startswith("SigBlk")]
    print(name, bool(int(blocked, 16) & 1 << signal.SIGTERM - 1))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    done = scripts.run(code, nowhere)
    assert done.status == 0, done.err
    *threads, own = done.out.splitlines()
    assert own == "set()"
    assert sum(line.endswith("True") for line in threads) == 2
