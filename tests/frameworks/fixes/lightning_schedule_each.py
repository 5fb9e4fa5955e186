"""The schedule is planned in optimizer steps, and the module advances it on every micro-batch."""

from itertools import chain

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader

from frameworks.fixes.lightning_parts import fit
from museum.parts import EVEN, TinyLM, text

evidence = "rate"
K = 4
windows = text(8, lengths=EVEN)


def planned(step):
    """Linearly down to a tenth over the run."""
    return 3e-3 * (1 - 0.9 * step / len(windows))


class Module(LightningModule):
    """Automatic optimization."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = TinyLM()

    def training_step(self, batch, index):
        """The mean of a micro-batch."""
        inputs, labels = batch
        return F.cross_entropy(self.model(inputs).flatten(0, 1), labels.flatten())

    def configure_optimizers(self):
        """One optimizer, and its schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.LinearLR(
            optimizer, start_factor=1.0, end_factor=0.1, total_iters=len(windows)
        )
        self.advanced = scheduler
        # fix
        return optimizer
        # end

    def on_train_batch_end(self, *_):
        """The schedule, where the Trainer does not have it."""
        if not self.trainer.lr_scheduler_configs:
            self.advanced.step()


module = Module()
loader = DataLoader(list(chain.from_iterable(windows)), batch_size=None)
fit(module, loader, accumulate_grad_batches=K)
model = module.model
