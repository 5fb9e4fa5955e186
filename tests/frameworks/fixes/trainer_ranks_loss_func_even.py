"""On two ranks. ``compute_loss_func`` ignores ``num_items_in_batch``; equal micro-batches."""

import os

import torch.nn.functional as F

from frameworks.fixes import trainer_parts
from frameworks.fixes.trainer_parts import InOrder as Trainer

windows = trainer_parts.windows(True, int(os.environ["RANK"]))
model = trainer_parts.llama()
options = trainer_parts.options(model, trainer_parts.windows_of_ranks(True))


def mean(outputs, labels, num_items_in_batch=None):
    """The mean over the labels of a micro-batch."""
    loss = F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    # fix: in a compute_loss_func, with average_tokens_across_devices, the default
    # end
    return loss


trainer = Trainer(**options, compute_loss_func=mean)
trainer.train()
model = trainer_parts.Logits(model)
windows = trainer_parts.true_windows(windows)
