"""On two ranks. ``compute_loss`` ignores ``num_items_in_batch``; equal micro-batches."""

import os

import torch.nn.functional as F

from frameworks.fixes import trainer_parts
from frameworks.fixes.trainer_parts import InOrder as Trainer

windows = trainer_parts.windows(True, int(os.environ["RANK"]))
model = trainer_parts.llama()
options = trainer_parts.options(model, trainer_parts.windows_of_ranks(True))


class Own(Trainer):
    """Its loss is the mean of the micro-batch."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The mean over the labels of a micro-batch."""
        logits = model(input_ids=inputs["input_ids"]).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), inputs["labels"][:, 1:].flatten())


trainer = Own(**options)
# fix: let the Trainer divide the loss of the model, or of compute_loss, by K
# end
trainer.train()
model = trainer_parts.Logits(model)
windows = trainer_parts.true_windows(windows)
