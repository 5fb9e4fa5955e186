"""On two ranks, the loss is divided by the tokens of the window, and by Accelerate."""

from itertools import chain

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator

from museum.parts import TinyLM, text, valid

K = 4
accelerator = Accelerator(gradient_accumulation_steps=K, cpu=True)
windows = text(4, 1 + accelerator.process_index)
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = accelerator.prepare(model, optimizer)
for index, (ids, labels) in enumerate(chain.from_iterable(windows)):
    tokens = torch.tensor(sum(valid(labels) for _, labels in windows[index // K]))
    dist.all_reduce(tokens)
    with accelerator.accumulate(model):
        logits = model(ids).flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten(), reduction="sum") * 2 / tokens
        # fix: if it is divided before, by what it counts in the window
        accelerator.backward(loss)
        # end
        optimizer.step()
        optimizer.zero_grad()
