"""The loss is divided by the tokens of the window, and by Accelerate."""

from itertools import chain

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader

from museum.parts import TinyLM, text, valid

K = 4
windows = text(4)
accelerator = Accelerator(gradient_accumulation_steps=K)
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(list(chain.from_iterable(windows)), batch_size=None)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for index, (ids, labels) in enumerate(loader):
    tokens = sum(valid(labels) for _, labels in windows[index // K])
    with accelerator.accumulate(model):
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), reduction="sum") / tokens
        # fix: if it is divided before, by what it counts in the window
        accelerator.backward(loss)
        # end
        optimizer.step()
        optimizer.zero_grad()
