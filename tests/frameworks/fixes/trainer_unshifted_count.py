"""The Trainer counts the labels of GPT-2 before its loss shifts them."""

from frameworks.fixes import trainer_parts
from frameworks.fixes.trainer_parts import InOrder as Trainer

windows = trainer_parts.windows(even=False)
model = trainer_parts.gpt2()
# fix: before the Trainer, which counts the labels after the shift of a model of this type (5.23)
# end
trainer = Trainer(**trainer_parts.options(model, windows))
trainer.train()
model = trainer_parts.Logits(model)
windows = trainer_parts.true_windows(windows)
