"""On two ranks. ``training_step`` does not divide by K; unequal micro-batches."""

import os

import torch.nn.functional as F  # noqa: F401 - for the fix

from frameworks.fixes import trainer_parts
from frameworks.fixes.trainer_parts import InOrder as Trainer

windows = trainer_parts.windows(False, int(os.environ["RANK"]))
model = trainer_parts.llama()
options = trainer_parts.options(model, trainer_parts.windows_of_ranks(False))


# fix: instead of a loss in the model, in compute_loss or in training_step (transformers 5.23)
class Own(Trainer):
    """Its step does not divide by K."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        """Backward of a micro-batch."""
        model.train()
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()


trainer = Own(**options)
# end
trainer.train()
model = trainer_parts.Logits(model)
windows = trainer_parts.true_windows(windows)
