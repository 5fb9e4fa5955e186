"""Lightning, asked to end: it saves its checkpoint with the hooks as without them.

The zoo compares how long a process takes that saves a checkpoint after SIGTERM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.patience import HANGS

pytest.importorskip("lightning.pytorch")

# A Trainer answers SIGTERM with an exception at the end of the batch, and a callback saves then.
SCRIPT = """
import time
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import OnExceptionCheckpoint

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def training_step(self, batch, index):
        if index == 3:
            print("ready", flush=True)
        time.sleep(0.05)
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.TensorDataset(torch.randn(4000, 4), torch.randint(0, 3, (4000,)))
quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
trainer = Trainer(max_epochs=1, accelerator="cpu", enable_checkpointing=True,
                  callbacks=[OnExceptionCheckpoint(".")], **quiet)
trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))
"""
WATCHED = ["-m", "gradledger.cli", "run", "--url", "http://127.0.0.1:9", "--", sys.executable]


def terminated(folder: Path, *command: str) -> tuple[int, bool]:
    """The exit status after SIGTERM, and whether a checkpoint was saved."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, *command, "train.py"],
        cwd=folder,
        env={**os.environ, "GRADLEDGER_SPOOL": str(folder / "spool"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        before = []
        while (line := lines.readline()) != "ready\n":
            before.append(line)
            assert line, "".join(before)
        process.send_signal(signal.SIGTERM)
        lines.read()
    status = process.wait(HANGS)
    return status, (folder / "on_exception.ckpt").exists()


def test_sigterm_saves_the_checkpoint_with_the_hooks_as_without(tmp_path: Path) -> None:
    status, saved = terminated(tmp_path / "alone")
    assert saved, "without the hooks, Lightning did not save either"
    assert terminated(tmp_path / "hooked", *WATCHED) == (status, saved)
