"""Messages of the hooks never harm the program, whatever its standard error is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradledger import autostart
from helpers import forkserver
from helpers.patience import HANGS

# A part of the hooks fails on purpose at every step, so that there is something to report.
FAILS = """
import os, sys
{before}
import torch
import torch.nn.functional as F
import gradledger
from gradledger import guard
from gradledger.stderr import OncePerTopic
{after}
torch.set_num_threads(1)
gradledger.watch()
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    F.cross_entropy(model(torch.ones(2, 4)), torch.tensor([0, 1])).backward()
    with guard.fail_open("part %d" % step):
        raise KeyError("on purpose, \\udcff and \u2014 " + "x" * 10_000)
    OncePerTopic().write("topic", "of delivery")
    optimizer.step()
print("trained", flush=True)
"""
RAISES = """
class Raises:
    encoding = "ascii"
    def write(self, text):
        raise {error}
    def flush(self):
        pass
    def fileno(self):
        return 2
sys.stderr = Raises()
"""
# Set after the hooks are imported.
STREAMS = {
    "is None": "sys.stderr = None",
    "is gone": "del sys.stderr",
    "is closed": "sys.stderr.close()",
    "has a descriptor that is closed": "os.close(2)",
    "raises OSError": RAISES.format(error="OSError(5, 'no device')"),
    "raises BrokenPipeError": RAISES.format(error="BrokenPipeError()"),
    "raises RuntimeError": RAISES.format(error="RuntimeError('mine')"),
    "raises TypeError": RAISES.format(error="TypeError('mine')"),
    "takes ASCII": "import io; sys.stderr = io.TextIOWrapper(io.BytesIO(), 'ascii', 'strict')",
    "has an odd descriptor": (
        "sys.stderr = type('S', (), {'fileno': lambda s: 'two', 'flush': lambda s: None})()"
    ),
}
CLOSED = "os.close(2); sys.stderr = sys.__stderr__ = None"
NO_READER = "reading, writing = os.pipe(); os.close(reading); os.dup2(writing, 2)"
# Set at the start of the program, as by a shell.
DESCRIPTORS = {
    "2>&-": CLOSED,
    "0<&- 2>&-": "os.close(0); sys.stdin = sys.__stdin__ = None; " + CLOSED,
    "2>/dev/full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "a pipe without a reader": NO_READER,
    "a pipe without a reader, whose SIGPIPE kills": (
        NO_READER + "; import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)"
    ),
    "a full pipe that is not read": """
reading, writing = os.pipe()
os.set_blocking(writing, False)
try:
    while True:
        os.write(writing, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(writing, True)
os.dup2(writing, 2)
""",
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """No service, and an empty spool."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
    ours = {"GRADLEDGER_URL": "http://127.0.0.1:9", "GRADLEDGER_SPOOL": str(tmp_path / "spool")}
    return {**env, **ours, "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def train(
    tmp_path: Path, environ: dict[str, str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a training that has something to report."""

    def run(before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(FAILS.replace("{before}", before).replace("{after}", after))
        return forkserver.run([script], environ, timeout=HANGS)

    return run


@pytest.mark.parametrize("kind", STREAMS)
def test_training_does_not_fail_if_standard_error(
    kind: str, train: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    process = train(after=STREAMS[kind])
    assert (process.returncode, process.stdout) == (0, "trained\n"), process.stderr


@pytest.mark.parametrize("kind", DESCRIPTORS)
def test_training_neither_fails_nor_blocks_if_it_starts_with(
    kind: str, train: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    process = train(before=DESCRIPTORS[kind])
    assert (process.returncode, process.stdout, process.stderr) == (0, "trained\n", "")


def test_a_report_is_one_line_that_fits_a_pipe(
    train: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    lines = train().stderr.splitlines(keepends=True)
    parts = [line for line in lines if line.startswith("gradledger: part ")]
    assert len(parts) == 3
    assert all(len(line.encode()) <= 4096 and line.endswith("...\n") for line in parts)
    assert all("failed and is switched off (KeyError: 'on purpose, " in line for line in parts)
    assert "\\udcff" in parts[0]


def test_a_failed_start_without_standard_error_does_not_fail_the_script(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text("import sys; sys.stderr = None")
    (tmp_path / "lib" / "gradledger").mkdir()
    (tmp_path / "lib" / "gradledger" / "__init__.py").write_text("raise KeyError('theirs')")
    path = os.pathsep.join([str(autostart.PATH), str(tmp_path / "lib")])
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print('trained')"],
        env={**environ, "PYTHONPATH": path},
        capture_output=True,
        timeout=HANGS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"trained\n", b"")
