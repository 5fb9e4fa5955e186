"""Manual optimization never zeroes the gradients."""

from itertools import chain

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader

from frameworks.fixes.lightning_parts import fit
from museum.parts import EVEN, TinyLM, text

K = 4
windows = text(4, lengths=EVEN)


class Module(LightningModule):
    """Manual optimization."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(0)
        self.model = TinyLM()

    def training_step(self, batch, batch_idx):
        """Backward of a micro-batch."""
        inputs, labels = batch
        loss = F.cross_entropy(self.model(inputs).flatten(0, 1), labels.flatten())
        optimizer = self.optimizers()
        if batch_idx % K == 0:
            # fix: before this optimizer's first backward of a window, after those of other losses
            pass
            # end
        self.manual_backward(loss / K)
        if (batch_idx + 1) % K == 0:
            optimizer.step()

    def configure_optimizers(self):
        """One optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


module = Module()
loader = DataLoader(list(chain.from_iterable(windows)), batch_size=None)
fit(module, loader)
model = module.model
