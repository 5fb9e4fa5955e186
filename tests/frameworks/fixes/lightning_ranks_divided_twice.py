"""On two ranks. The loss is divided by K in the module, and by Lightning."""

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
    """Automatic optimization."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = TinyLM()

    def training_step(self, batch, index):
        """The loss of a micro-batch."""
        inputs, labels = batch
        loss = F.cross_entropy(self.model(inputs).flatten(0, 1), labels.flatten()) / K
        # fix: in automatic optimization
        return loss
        # end

    def configure_optimizers(self):
        """One optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


module = Module()
loader = DataLoader(list(chain.from_iterable(windows)), batch_size=None)
fit(module, loader, accumulate_grad_batches=K)
model = module.model
