"""On two ranks. Manual optimization divides by K twice."""

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
        inputs, labels = batch
        optimizer, last = self.optimizers(), (index + 1) % K == 0
        loss = F.cross_entropy(self.model(inputs).flatten(0, 1), labels.flatten()) / K
        with optimizer.toggle_model(sync_grad=last):
            # fix: in manual optimization
            self.manual_backward(loss / K)
            # end
        if last:
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self):
        """One optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


module = Module()
loader = DataLoader(list(chain.from_iterable(windows)), batch_size=None)
fit(module, loader)
model = module.model
