"""A PyTorch that is too old: one line, and the program runs without the hooks."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradledger.torch_version import is_supported
from helpers import forkserver
from helpers.patience import HANGS

# PyTorch 1 has no hooks for all optimizers. The session imports them.
PROGRAM = """
import sys
import torch
torch.__version__ = "1.13.1+cu117"
del sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook
for name in [name for name in sys.modules if name.startswith("gradledger")]:
    del sys.modules[name]
import gradledger
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.25)
ledger = gradledger.watch(optimizer=optimizer, url="http://127.0.0.1:9")
gradledger.watch()
ledger.log_eval(1, loss=2.0)
ledger.checkpoint("model.pt")
ledger.micro_batch(tokens=3, reduction="mean")
ledger.pause()
ledger.resume()
backward = torch.autograd.backward
for _ in range(2):
    (weight * 2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
ledger.close()
print(weight.item(), backward.__module__)
"""


def test_training_goes_on_and_one_line_gives_the_reason(tmp_path: Path) -> None:
    script = tmp_path / "trains.py"
    script.write_text(PROGRAM)
    done = forkserver.run([script], timeout=HANGS)
    assert (done.returncode, done.stdout) == (0, "0.0 torch.autograd\n"), done.stderr
    assert done.stderr == (
        "gradledger: not started (needs PyTorch 2.6 or newer, this is 1.13.1+cu117); "
        "the program runs without the hooks\n"
    )


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("2.5.1", False),
        ("1.13.1+cu117", False),
        ("unknown", False),
        ("2.6.0a0+git1234", True),
        ("2.10.0", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, supported: bool) -> None:
    assert is_supported(version) is supported
