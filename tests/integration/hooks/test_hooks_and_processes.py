"""What the hooks cost and do in processes that do not train: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradledger
from gradledger import autostart
from helpers import forkserver
from helpers.batches import eventually
from helpers.patience import HANGS
from helpers.service import running_service


def python(code: str) -> str:
    """The output of an interpreter that starts cold."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_importing_gradledger_imports_the_standard_library_alone() -> None:
    loaded = python(
        "import sys; before = set(sys.modules); import gradledger;"
        "print(*sorted(m for m in set(sys.modules) - before if '.' not in m))"
    )
    assert set(loaded.split()) - set(sys.stdlib_module_names) == {"gradledger"}


def test_the_public_names_are_these() -> None:
    assert gradledger.__all__ == ["FindingError", "Ledger", "__version__", "load", "watch"]


# The data set's workers train too, and so does a child that is forked by hand.
FORKS = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

def train(model, batch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

class Trains(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        train(torch.nn.Linear(3, 2), torch.ones(2, 3))
        return torch.ones(2, 3)

torch.set_num_threads(1)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Trains(), 2, num_workers=2, multiprocessing_context="fork"):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
# PyTorch's threads that fed the workers end soon. With them, fork warns. The hooks have two.
while len(os.listdir("/proc/self/task")) > 3:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    train(model, torch.ones(2, 3))
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
model(torch.ones(2, 3)).square().mean().backward()
optimizer.step()
"""


def test_forked_children_send_nothing_and_disturb_nothing(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(FORKS)
    with running_service(tmp_path / "gradledger.db") as service:
        environ = autostart.environment(os.environ, ["forks.py"], url=service.url)
        done = forkserver.run([script], environ, timeout=HANGS, teardown=True)
        assert (done.returncode, done.stderr) == (0, "")
        (row,) = service.get("/runs").json()["runs"]
        assert row["optimizers"] == ["SGD"]
        series = f"/runs/{row['id']}/series"
        assert eventually(HANGS, lambda: service.get(series).json()["step"] == [1, 2, 3, 4, 5])
        assert eventually(HANGS, lambda: service.get("/runs").json()["runs"][0]["ended"])


THREADS = """
import os, threading
import torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()
if os.fork() == 0:
    os._exit(0)
os.wait()
end.set()
thread.join()
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before Python 3.12, fork does not warn")
def test_a_program_with_threads_gets_the_warning_about_fork(tmp_path: Path) -> None:
    """The test above shows that the hooks' threads alone cause no warning."""
    script = tmp_path / "threads.py"
    script.write_text(THREADS)
    with running_service(tmp_path / "gradledger.db") as service:
        environ = autostart.environment(os.environ, ["threads.py"], url=service.url)
        done = forkserver.run([script], environ, timeout=HANGS)
    assert done.returncode == 0
    assert done.stderr.count("DeprecationWarning") == 1
