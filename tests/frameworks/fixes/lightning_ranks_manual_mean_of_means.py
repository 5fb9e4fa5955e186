"""On two ranks. Manual optimization averages the means of unequal micro-batches."""

import os
from itertools import chain

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader

from frameworks.fixes.lightning_parts import fit
from museum.parts import TinyLM, text

K = 4
windows = text(4, 1 + int(os.environ["RANK"]))
loader = DataLoader(list(chain.from_iterable(windows)), batch_size=None)
accumulate = {}


class Base(LightningModule):
    """Its parts that are right."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = TinyLM()

    def forward(self, ids):
        """Logits."""
        return self.model(ids)

    def configure_optimizers(self):
        """One optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class Module(Base):
    """The loop."""

    # fix: in the LightningModule, where the loader returns whole windows
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        """Backward of a micro-batch."""
        inputs, labels = batch
        optimizer, last = self.optimizers(), (index + 1) % K == 0
        loss = F.cross_entropy(self(inputs).flatten(0, 1), labels.flatten())
        with optimizer.toggle_model(sync_grad=last):
            self.manual_backward(loss / K)
        if last:
            optimizer.step()
            optimizer.zero_grad()

    # end


module = Module()
# fix: for the Trainer
# end
fit(module, loader, **accumulate)
model = module.model
