"""On two ranks. The head of the model ignores ``num_items_in_batch``; equal micro-batches."""

import os

import torch.nn.functional as F

from frameworks.fixes import trainer_parts
from frameworks.fixes.trainer_parts import InOrder as Trainer

windows = trainer_parts.windows(True, int(os.environ["RANK"]))
model = trainer_parts.llama()
model.loss_function = lambda logits, labels, **_: F.cross_entropy(
    logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
)
options = trainer_parts.options(model, trainer_parts.windows_of_ranks(True))


trainer = Trainer(**options)
# fix: let the Trainer divide the loss of the model, or of compute_loss, by K
# end
trainer.train()
model = trainer_parts.Logits(model)
windows = trainer_parts.true_windows(windows)
