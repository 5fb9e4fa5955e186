"""On two ranks, whose 6 micro-batches a sampler of Lightning selects; windows of 4 and 2."""

from itertools import chain

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from frameworks.fixes import lightning_parts
from museum.parts import EVEN, TinyLM, text

K = 4
micro_batches = list(chain.from_iterable(text(3, lengths=EVEN)))
seen, windows = [], []


class Module(LightningModule):
    """Automatic optimization, which steps at the end of an epoch, too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = TinyLM()

    def training_step(self, batch, index):
        """The mean of a micro-batch."""
        seen.append(batch)
        return F.cross_entropy(self.model(batch[0]).flatten(0, 1), batch[1].flatten())

    def on_before_optimizer_step(self, optimizer):
        """The micro-batches of the window that ends."""
        windows.append(list(seen))
        seen.clear()

    def configure_optimizers(self):
        """One optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


module = Module()
loader = DataLoader(micro_batches, batch_size=None)
batches = len(loader) // 2
options = {**lightning_parts.options(), "max_epochs": 4, "accumulate_grad_batches": K}
options["use_distributed_sampler"] = True
# fix: where the Trainer is created
trainer = Trainer(**options)
# end
trainer.fit(module, loader)
model = module.model
