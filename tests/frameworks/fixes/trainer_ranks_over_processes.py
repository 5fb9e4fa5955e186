"""On two ranks. ``compute_loss`` divides by the labels of all; the gradients are averaged."""

import os

import torch.nn.functional as F

from frameworks.fixes import trainer_parts
from frameworks.fixes.trainer_parts import InOrder as Trainer

windows = trainer_parts.windows(False, int(os.environ["RANK"]))
model = trainer_parts.llama()
options = trainer_parts.options(model, trainer_parts.windows_of_ranks(False))


class Own(Trainer):
    """Its loss is the sum over the labels of a micro-batch, over those of the window."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """A part of the mean over the window."""
        logits = model(input_ids=inputs["input_ids"]).logits[:, :-1].flatten(0, 1)
        loss = F.cross_entropy(logits, inputs["labels"][:, 1:].flatten(), reduction="sum")
        loss = loss / num_items_in_batch
        # fix: in a compute_loss of your own, whose result the Trainer does not multiply
        # end
        return loss


trainer = Own(**options)
trainer.train()
model = trainer_parts.Logits(model)
windows = trainer_parts.true_windows(windows)
