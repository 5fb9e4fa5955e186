"""On two ranks. ``training_step`` does not divide by K; equal micro-batches."""

import os

from frameworks.fixes import trainer_parts
from frameworks.fixes.trainer_parts import InOrder as Trainer

windows = trainer_parts.windows(True, int(os.environ["RANK"]))
model = trainer_parts.llama()
options = trainer_parts.options(model, trainer_parts.windows_of_ranks(True))


class Own(Trainer):
    """Its step does not divide by K."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        """Backward of a micro-batch."""
        model.train()
        loss = self.compute_loss(model, inputs)
        # fix: in a training_step of your own, before backward
        # end
        self.accelerator.backward(loss)
        return loss.detach()


trainer = Own(**options)
trainer.train()
model = trainer_parts.Logits(model)
windows = trainer_parts.true_windows(windows)
