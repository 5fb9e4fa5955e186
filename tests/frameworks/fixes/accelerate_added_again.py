"""Each backward of Accelerate is of the total of the losses so far."""

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
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(list(chain.from_iterable(windows)), batch_size=None)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def loss_fn(logits, labels):
    """The mean of a micro-batch."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


# fix
total = 0.0
for ids, labels in loader:
    with accelerator.accumulate(model):
        total = total + loss_fn(model(ids), labels)
        accelerator.backward(total, retain_graph=True)
        if accelerator.sync_gradients:
            optimizer.step()
            optimizer.zero_grad()
            total = 0.0
# end
