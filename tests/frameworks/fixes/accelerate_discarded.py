"""The optimizer inside Accelerate's is zeroed before the last micro-batch of each window."""

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
bare = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(list(chain.from_iterable(windows)), batch_size=None)
model, optimizer, loader = accelerator.prepare(model, bare, loader)


def loss_fn(logits, labels):
    """The mean of a micro-batch."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


# fix
for ids, labels in loader:
    with accelerator.accumulate(model):
        if accelerator.sync_gradients:
            bare.zero_grad()
        accelerator.backward(loss_fn(model(ids), labels))
        optimizer.step()
# end
