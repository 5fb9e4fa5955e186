"""A hook of the module clips after the backward, while the gradients are scaled."""

from itertools import chain

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader

from frameworks.fixes import lightning_parts
from museum.parts import EVEN, TinyLM, text

windows = text(4, lengths=[window[:1] for window in EVEN])
max_norm = 0.2


class Module(LightningModule):
    """Automatic optimization, in float32."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = TinyLM()

    def training_step(self, batch, index):
        """The mean of a micro-batch."""
        inputs, labels = batch
        with torch.autocast("cpu", enabled=False):
            return F.cross_entropy(self.model(inputs).flatten(0, 1), labels.flatten())

    def on_after_backward(self):
        """What the Trainer should do."""
        if trainer.gradient_clip_val is None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), max_norm)

    def configure_optimizers(self):
        """One optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


options = {
    **lightning_parts.options(),
    "plugins": MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0)),
}
module = Module()
loader = DataLoader(list(chain.from_iterable(windows)), batch_size=None)
# fix
trainer = Trainer(**options)
# end
trainer.fit(module, loader)
model = module.model
