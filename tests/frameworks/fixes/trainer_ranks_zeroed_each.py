"""On two ranks. ``training_step`` zeroes the gradients before each micro-batch."""

import os

from frameworks.fixes import trainer_parts
from frameworks.fixes.trainer_parts import InOrder as Trainer

windows = trainer_parts.windows(True, int(os.environ["RANK"]))
model = trainer_parts.llama()
options = trainer_parts.options(model, trainer_parts.windows_of_ranks(True))


class Own(Trainer):
    """Its step zeroes the gradients."""

    # fix
    def training_step(self, model, inputs, num_items_in_batch=None):
        """Backward of a micro-batch."""
        model.zero_grad()
        return super().training_step(model, inputs, num_items_in_batch)

    # end


trainer = Own(**options)
trainer.train()
model = trainer_parts.Logits(model)
windows = trainer_parts.true_windows(windows)
