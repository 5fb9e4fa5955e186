"""Gradients are never zeroed."""

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

for ids, labels in loader:
    with accelerator.accumulate(model):
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        accelerator.backward(loss)
        # fix
        optimizer.step()
        # end
