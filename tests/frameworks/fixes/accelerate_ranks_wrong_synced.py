"""``no_sync`` covers the last micro-batch, and no other."""

import contextlib
from itertools import chain

import torch
import torch.nn.functional as F
from accelerate import Accelerator

from museum.parts import EVEN, TinyLM, text

K = 4
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=K)
windows = text(4, 1 + accelerator.process_index, EVEN)
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = accelerator.prepare(model, optimizer)


def compute_loss(model, batch):
    """The mean of a micro-batch."""
    ids, labels = batch
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


for i, batch in enumerate(chain.from_iterable(windows)):
    last = (i + 1) % K == 0
    # fix
    with accelerator.no_sync(model) if last else contextlib.nullcontext():
        accelerator.backward(compute_loss(model, batch))
    # end
    if last:
        optimizer.step()
        optimizer.zero_grad()
