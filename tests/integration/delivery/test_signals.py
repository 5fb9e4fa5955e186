"""A signal has the same effect with and without the hooks: handlers, status, output.

With the hooks, these scripts have no time limit at their end (see the prelude of all scripts), so
one that waits after the signal hangs. Signals to ``torchrun`` are in ``tests/e2e``.
"""

from __future__ import annotations

import signal
from subprocess import CompletedProcess

import pytest

from helpers.batches import eventually
from helpers.patience import HANGS

from .conftest import Scripts

DISPOSITIONS = """
handlers = {int(n): repr(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()}
train(3)
assert handlers == {
    int(n): repr(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()
}
print(sorted(handlers.items()), signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(signal.set_wakeup_fd(-1))
"""

# Each script takes its steps, writes that it is ready, and waits for a signal. It writes without
# a buffer, because a handler that prints must not interrupt a `print`.
READY = "\ntrain(3)\nos.write(1, b'ready\\n')\n"
WAITS = READY + "while True:\n    signal.pause()\n"
EXITS = """
def save(number, frame):
    print("saved", number, flush=True)
    sys.exit(5)
"""
HANDLES = "signal.signal(signal.SIGTERM, save)\n"
REQUEUES = r"""
due = []
signal.signal(signal.SIGUSR1, lambda *_: due.append("checkpoint"))
train(3)
os.write(1, b"ready\n")
while not due:
    train(1)
print(*due)
sys.exit(0)
"""
RAISES = r"""
class Terminated(Exception):
    pass

def stop(number, frame):
    raise Terminated

signal.signal(signal.SIGTERM, stop)
train(3)
try:
    os.write(1, b"ready\n")
    signal.pause()
except Terminated:
    print("saved")
signal.signal(signal.SIGTERM, signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGTERM)
"""
DEFERS = r"""
train(3)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.write(1, b"ready\n")
wait_until(lambda: signal.SIGTERM in signal.sigpending())
print("saved in one piece", flush=True)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
"""
DUMPS = r"""
import faulthandler
faulthandler.register(signal.SIGUSR1, file=open("stacks", "w"), all_threads=False)
train(3)
os.write(1, b"ready\n")
wait_until(lambda: os.path.getsize("stacks"))
print("continued")
"""
PROGRAMS = {
    "no handler": (WAITS, signal.SIGTERM),
    "a handler that exits": (
        EXITS + HANDLES + WAITS,
        signal.SIGTERM,
    ),
    "a handler set after training": (
        EXITS + WAITS.replace("os.write", HANDLES + "os.write"),
        signal.SIGTERM,
    ),
    "a handler that raises, after which the script continues": (RAISES, signal.SIGTERM),
    "ignored, then ended by another": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + WAITS.replace("os.write", "os.kill(os.getpid(), signal.SIGTERM)\nos.write"),
        signal.SIGHUP,
    ),
    "deferred until a checkpoint is written": (DEFERS, signal.SIGTERM),
    "a request for a checkpoint, as by Slurm": (REQUEUES, signal.SIGUSR1),
    "stacks dumped by faulthandler": (DUMPS, signal.SIGUSR1),
    "interrupted": (WAITS, signal.SIGINT),
}
# Their modules are torn down, too, which takes a second.
TORN_DOWN = ("a handler that exits", "interrupted")


def signalled(scripts: Scripts, kind: str, hooks: bool, url: str) -> CompletedProcess[str]:
    """Run a program, send it the signal once it is ready, and wait for its end."""
    code, sent = PROGRAMS[kind]
    process = scripts.start(code, url, hooks=hooks, teardown=hooks and kind in TORN_DOWN)
    line = process.stdout.readline()
    assert line == "ready\n", process.communicate()[1]
    if hooks:  # what it recorded in the last 0.2 s would be lost
        assert eventually(HANGS, lambda: scripts.on_disk() >= 3)
    process.send_signal(sent)
    rest, complaint = process.communicate(timeout=HANGS)
    return CompletedProcess([code], process.wait(), rest, complaint)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_signal_does_the_same_with_the_hooks_and_without(
    kind: str, scripts: Scripts, nowhere: str
) -> None:
    alone = signalled(scripts, kind, False, nowhere)
    hooked = signalled(scripts, kind, True, nowhere)
    assert (hooked.returncode, hooked.stdout) == (alone.returncode, alone.stdout)


def test_no_disposition_mask_or_wakeup_descriptor_is_changed(
    scripts: Scripts, nowhere: str
) -> None:
    alone = scripts.run(DISPOSITIONS, nowhere, hooks=False)
    hooked = scripts.run(DISPOSITIONS, nowhere)
    assert alone.returncode == hooked.returncode == 0, hooked.stderr
    assert hooked.stdout == alone.stdout


# A rank that waits in a collective runs no Python code, so no Python signal handler either.
COLLECTIVE = """
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", f"file://{os.getcwd()}/store", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    F.cross_entropy(model(torch.randn(6, 4)), torch.randint(0, 3, (6,))).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.recv(torch.zeros(1), src=1 - rank)  # both wait for the other
"""


def test_ranks_that_wait_in_a_collective_end_at_sigterm(scripts: Scripts, nowhere: str) -> None:
    environs = [{"RANK": rank, "WORLD_SIZE": "2"} for rank in "01"]
    ranks = [scripts.start(COLLECTIVE, nowhere, environ=environ) for environ in environs]
    assert eventually(HANGS, lambda: scripts.on_disk() == 6)
    for rank in ranks:
        rank.terminate()
    assert [rank.wait(HANGS) for rank in ranks] == [-signal.SIGTERM] * 2
    assert scripts.on_disk() == 6


def test_a_signal_that_only_the_script_unblocks_never_reaches_our_threads(
    scripts: Scripts, nowhere: str
) -> None:
    code = """
train(3)
wait_until(lambda: len(os.listdir("/proc/self/task")) == 3)  # this one and those of the hooks
threads = [t for t in os.listdir("/proc/self/task") if t != str(os.getpid())]
for task in threads:
    name = open(f"/proc/self/task/{task}/comm").read().strip()
    lines = open(f"/proc/self/task/{task}/status").read().splitlines()
    (blocked,) = [line.split()[1] for line in lines if line.startswith("SigBlk")]
    print(name, bool(int(blocked, 16) & 1 << signal.SIGTERM - 1))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    done = scripts.run(code, nowhere)
    assert done.returncode == 0, done.stderr
    *threads, own = done.stdout.splitlines()
    assert own == "set()"
    assert sum(line.endswith("True") for line in threads) == 2
