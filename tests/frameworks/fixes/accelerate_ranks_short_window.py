"""On two ranks, the loop steps by itself, also at the end of an epoch; Accelerate divides by 4."""

from itertools import chain

import torch
import torch.nn.functional as F
from accelerate import Accelerator, PartialState

from museum.parts import EVEN, TinyLM, text

K = 4
batches = list(chain.from_iterable(text(6, 1 + PartialState(cpu=True).process_index, EVEN)))
windows = [batches[i : i + n] for i, n in ((0, 4), (4, 2), (6, 4), (10, 2), (12, 4), (16, 2))]
accelerator = Accelerator(gradient_accumulation_steps=K)
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = accelerator.prepare(model, optimizer)
for window in windows:
    for index, (ids, labels) in enumerate(window, 1):
        model.require_backward_grad_sync = index == len(window)
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        # fix: without accumulate(), for each micro-batch; what backward divides by is undone
        accelerator.backward(loss)
        # end
    optimizer.step()
    optimizer.zero_grad()
