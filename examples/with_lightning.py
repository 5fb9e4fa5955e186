"""Lightning with manual optimisation, so that every token of a window has equal weight.

Automatic optimisation divides by `accumulate_grad_batches`, which is correct only if all
micro-batches have the same number of tokens.

    gradledger check -- python examples/with_lightning.py
"""

import random

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

STEPS, MICRO_BATCHES, VOCABULARY, PAD = 10, 4, 32, -100


def collate(sentences):
    """A whole window at once: a list of micro-batches."""
    thirds = [sentences[i::MICRO_BATCHES] for i in range(MICRO_BATCHES)]
    return [nn.utils.rnn.pad_sequence(rows, True, padding_value=PAD) for rows in thirds]


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.layers = nn.Sequential(
            nn.Embedding(VOCABULARY, 16), nn.Tanh(), nn.Linear(16, VOCABULARY)
        )

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def training_step(self, window, index):
        optimizer = self.optimizers()
        tokens = sum((words[:, 1:] != PAD).sum() for words in window)
        for words in window:
            logits = self.layers(words[:, :-1].clamp(min=0)).flatten(0, 1)
            loss = F.cross_entropy(logits, words[:, 1:].flatten(), reduction="sum")
            self.manual_backward(loss / tokens)
        optimizer.step()
        optimizer.zero_grad()


random.seed(0)
torch.manual_seed(0)
data = [torch.randint(VOCABULARY, (random.randint(4, 60),)) for _ in range(3 * 4 * STEPS)]
loader = DataLoader(data, batch_size=3 * MICRO_BATCHES, shuffle=True, collate_fn=collate)
trainer = pl.Trainer(
    max_epochs=1,
    accelerator="auto" if torch.cuda.is_available() else "cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), loader)
print(f"trained {trainer.global_step} steps")
