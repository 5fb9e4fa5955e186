"""On two ranks. The last micro-batch is not synchronised, and all others are."""

import contextlib
import os
from itertools import chain

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader

from frameworks.fixes.lightning_parts import fit
from museum.parts import EVEN, TinyLM, text

K = 4
windows = text(4, 1 + int(os.environ["RANK"]), EVEN)


class Module(LightningModule):
    """Manual optimization."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(0)
        self.model = TinyLM()

    def training_step(self, batch, index):
        """Backward of a micro-batch."""
        optimizer, last = self.optimizers(), (index + 1) % K == 0
        # fix
        with self.trainer.strategy.block_backward_sync() if last else contextlib.nullcontext():
            self.manual_backward(self.compute_loss(batch))
        # end
        if last:
            optimizer.step()
            optimizer.zero_grad()

    def compute_loss(self, batch):
        """The mean of a micro-batch, divided for the accumulation."""
        inputs, labels = batch
        return F.cross_entropy(self.model(inputs).flatten(0, 1), labels.flatten()) / K

    def configure_optimizers(self):
        """One optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


module = Module()
loader = DataLoader(list(chain.from_iterable(windows)), batch_size=None)
fit(module, loader)
model = module.model
