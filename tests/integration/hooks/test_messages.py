"""A message of ours harms no program: whatever its standard error is, it trains and exits alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.patience import HANGS

# A part of the hooks fails on purpose at every step, so that there is something to report.
FAILS = """
import sys, time, types
{before}
import torch
import torch.nn.functional as F
torch.set_num_threads(1)
sys.modules["torch._dynamo"] = torch._dynamo = types.SimpleNamespace(
    disable=lambda f, *_, **__: f, graph_break=lambda: None)
import gradledger
from gradledger import guard
from gradledger.stderr import OncePerTopic
{after}
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
STREAMS = {
    "is None": "sys.stderr = None",
    "is gone": "del sys.stderr",
    "is closed": "sys.stderr.close()",
    "has a descriptor that is closed": "import os; os.close(2)",
    "raises OSError": RAISES.format(error="OSError(5, 'no device')"),
    "raises BrokenPipeError": RAISES.format(error="BrokenPipeError()"),
    "raises RuntimeError": RAISES.format(error="RuntimeError('mine')"),
    "raises TypeError": RAISES.format(error="TypeError('mine')"),
    "takes ASCII": "import io; sys.stderr = io.TextIOWrapper(io.BytesIO(), 'ascii', 'strict')",
    "has an odd descriptor": (
        "sys.stderr = type('S', (), {'fileno': lambda s: 'two', 'flush': lambda s: None})()"
    ),
}


def program(folder: Path, before: str = "", after: str = "") -> list[str]:
    """A script that has something to report."""
    path = folder / "script.py"
    text = FAILS.replace("{before}", before).replace("{after}", after)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return [sys.executable, str(path)]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A service that is not there, and a spool of the test's own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
    mine = {"GRADLEDGER_URL": "http://127.0.0.1:9", "GRADLEDGER_SPOOL": str(tmp_path / "spool")}
    return {**env, **mine, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize("kind", STREAMS)
def test_a_standard_error_that_cannot_be_written_is_no_reason_to_fail(
    kind: str, tmp_path: Path, environ: dict[str, str]
) -> None:
    done = subprocess.run(
        program(tmp_path, after=STREAMS[kind]), env=environ, capture_output=True, timeout=HANGS
    )
    assert (done.returncode, done.stdout) == (0, b"trained\n"), done.stderr.decode()


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2>&- >out", "0<&- 2>&-"])
def test_a_shell_may_close_or_fill_it(
    redirection: str, tmp_path: Path, environ: dict[str, str]
) -> None:
    line = f"{' '.join(program(tmp_path))} {redirection}; exit $?"
    done = subprocess.run(
        ["bash", "-c", line], env=environ, cwd=tmp_path, stdout=subprocess.PIPE, timeout=HANGS
    )
    assert done.returncode == 0
    out = tmp_path / "out"
    assert (out.read_bytes() if out.exists() else done.stdout) == b"trained\n"


@pytest.mark.parametrize(
    "dies", ["", "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)"]
)
def test_a_reader_that_is_gone_changes_no_exit_status(
    dies: str, tmp_path: Path, environ: dict[str, str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        program(tmp_path, dies), env=environ, stdout=subprocess.PIPE, stderr=writing, timeout=HANGS
    )
    os.close(writing)
    assert (done.returncode, done.stdout) == (0, b"trained\n")


def test_a_pipe_that_nobody_reads_blocks_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    done = subprocess.run(
        program(tmp_path), env=environ, stdout=subprocess.PIPE, stderr=writing, timeout=60
    )
    os.close(reading)
    os.close(writing)
    assert (done.returncode, done.stdout) == (0, b"trained\n")


def test_what_is_reported_is_one_line_that_fits_a_pipe(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    done = subprocess.run(program(tmp_path), env=environ, capture_output=True, timeout=HANGS)
    lines = done.stderr.splitlines(keepends=True)
    parts = [line for line in lines if line.startswith(b"gradledger: part ")]
    assert len(parts) == 3
    assert all(len(line) <= 4096 and line.endswith(b"...\n") for line in parts)
    assert all(b"failed and is switched off (KeyError: 'on purpose, " in line for line in parts)
    assert b"\\udcff" in parts[0]


def test_a_start_that_fails_without_a_standard_error_is_no_reason_to_fail(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text("import sys; sys.stderr = None")
    (tmp_path / "lib" / "gradledger").mkdir()
    (tmp_path / "lib" / "gradledger" / "__init__.py").write_text("raise KeyError('theirs')")
    from gradledger import autostart  # noqa: PLC0415

    path = os.pathsep.join([str(autostart.PATH), str(tmp_path / "lib")])
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print('trained')"],
        env={**environ, "PYTHONPATH": path},
        capture_output=True,
        timeout=HANGS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"trained\n", b"")
