"""On two ranks. The sum is divided by the tokens of all processes, whose gradients are averaged."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator

from museum.parts import RAGGED, TinyLM, text

accelerator = Accelerator(cpu=True)
windows = text(4, 1 + accelerator.process_index, RAGGED)
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = accelerator.prepare(model, optimizer)

for window in windows:
    tokens = accelerator.gather(sum((labels != -100).sum() for _, labels in window)).sum()
    for index, (ids, labels) in enumerate(window, start=1):
        model.require_backward_grad_sync = index == len(window)
        logits = model(ids).flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten(), reduction="sum") / tokens
        # fix: for each micro-batch
        accelerator.backward(loss)
        # end
    optimizer.step()
    optimizer.zero_grad()
