"""Two models, and ``accumulate()`` is entered for each: it counts each micro-batch twice."""

from itertools import chain

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader

from museum.parts import EVEN, TinyLM, text

K = 4
windows = text(4, lengths=EVEN)
accelerator = Accelerator(gradient_accumulation_steps=K)
torch.manual_seed(0)
model, other = TinyLM(), TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(list(chain.from_iterable(windows)), collate_fn=lambda batch: batch[0])
model, other, optimizer, loader = accelerator.prepare(model, other, optimizer, loader)


def loss_fn(logits, labels):
    """The mean over the tokens of a micro-batch."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


# fix: enter it once for each micro-batch, with all models
for x, y in loader:
    with accelerator.accumulate(other):
        other(x)
    with accelerator.accumulate(model):
        accelerator.backward(loss_fn(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
# end
