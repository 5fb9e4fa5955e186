"""The optimizer steps twice on one gradient."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator

from museum.parts import EVEN, TinyLM, text

K = 4
accelerator = Accelerator()
windows = text(4, lengths=EVEN)
torch.manual_seed(0)
plain = TinyLM()
model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=3e-3))

for window in windows:
    for ids, labels in window:
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        accelerator.backward(loss / K)
    # fix
    optimizer.step()
    optimizer.step()
    optimizer.zero_grad()
    # end
model = plain
