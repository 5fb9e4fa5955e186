"""``accumulate()`` counts 4 micro-batches for a window, and the loop 3."""

import contextlib  # noqa: F401 - for the fix
from itertools import chain

import torch
import torch.nn.functional as F
from accelerate import Accelerator

from museum.parts import EVEN, TinyLM, text

K = 3
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
micro_batches = list(chain.from_iterable(text(6, 1 + accelerator.process_index, EVEN)))
windows = [micro_batches[i : i + K] for i in range(0, len(micro_batches), K)]
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model = accelerator.prepare(model)


def compute_loss(model, batch):
    """The mean of a micro-batch, times what its divisor is too large by."""
    ids, labels = batch
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten()) * 4 / K


for i, batch in enumerate(micro_batches):
    last = (i + 1) % K == 0
    # fix
    with accelerator.accumulate(model):
        accelerator.backward(compute_loss(model, batch))
    # end
    if last:
        optimizer.step()
        optimizer.zero_grad()
