"""The loop accumulates by itself, and adds up the losses: Accelerate knows of no accumulation."""

from itertools import chain

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader

from museum.parts import EVEN, TinyLM, text

K = 4
windows = text(4, lengths=EVEN)
accelerator = Accelerator()
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(list(chain.from_iterable(windows)), batch_size=None)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def compute_loss(model, batch):
    """The mean over the tokens of a micro-batch."""
    ids, labels = batch
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


for index, batch in enumerate(loader):
    loss = compute_loss(model, batch)
    accelerator.backward(loss)
    if (index + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
