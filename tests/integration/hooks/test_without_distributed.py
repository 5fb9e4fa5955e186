"""A PyTorch without ``torch.distributed``, which some builds leave out: training is recorded."""

from __future__ import annotations

from pathlib import Path

from helpers import forkserver
from helpers.patience import HANGS

PROGRAM = f"""
import sys, types
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
for name in [name for name in sys.modules if name.startswith("gradledger")]:
    del sys.modules[name]
import torch.distributed as dist
vars(dist).pop("reduce_op", None)  # warns if anything touches it
for name, value in [*vars(dist).items()]:
    # Such a build has the function and two names for annotations.
    if name not in ("is_available", "ProcessGroup", "GroupName") and not name.startswith("__"):
        if not isinstance(value, types.ModuleType) or name == "distributed_c10d":
            delattr(dist, name)
dist.is_available = lambda: False

from helpers.training import cross_entropy, recording, tiny_model, tokens, torch, windows
with recording() as recorded:
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in windows(3):
        count = sum(map(tokens, window))
        for batch in window:
            (cross_entropy(model, batch, reduction="sum") / count).backward()
        optimizer.step()
        optimizer.zero_grad()
print(recorded.evaluation().verdict)
"""


def test_training_is_recorded(tmp_path: Path) -> None:
    script = tmp_path / "trains.py"
    script.write_text(PROGRAM)
    done = forkserver.run([script], timeout=HANGS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "balanced\n", ""), done.stderr
