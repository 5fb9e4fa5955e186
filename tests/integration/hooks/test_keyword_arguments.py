"""Methods that the hooks wrap take their arguments by keyword, whatever the keywords are called."""

from __future__ import annotations

from pathlib import Path

from helpers import forkserver
from helpers.patience import HANGS

PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from helpers.training import recording

class Net(nn.Linear):
    def forward(self, features, module=None):
        return super().forward(features)

class AfterWarmUp(LRScheduler):
    def __init__(self, optimizer, scheduler=None):
        self.scheduler = scheduler
        super().__init__(optimizer=optimizer)

    def get_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, epoch=None, scheduler=None):
        super().step()

class Doubling(torch.optim.SGD):
    def zero_grad(self, set_to_none=True, owner=None):
        super().zero_grad(set_to_none=set_to_none)

dist.init_process_group("gloo", f"file://{{sys.argv[1]}}", rank=0, world_size=1)
with recording() as recorded:
    model = DistributedDataParallel(module=Net(in_features=2, out_features=2))
    optimizer = Doubling(params=model.parameters(), lr=0.1)
    scheduler = AfterWarmUp(optimizer, scheduler=LambdaLR(optimizer=optimizer, lr_lambda=float))
    model(torch.ones(1, 2), module="head").sum().backward()
    optimizer.step()
    scheduler.step(scheduler=None)
    optimizer.zero_grad(owner="loop")
print(len(recorded.steps))
"""


def test_no_name_of_a_wrapper_is_taken_from_the_caller(tmp_path: Path) -> None:
    script = tmp_path / "trains.py"
    script.write_text(PROGRAM)
    done = forkserver.run([script, tmp_path / "store"], timeout=HANGS)
    printed = done.stdout.splitlines()  # gloo of PyTorch 2.10 prints, too
    assert (done.returncode, printed[-1:]) == (0, ["1"]), done.stderr
