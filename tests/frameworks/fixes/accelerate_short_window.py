"""Epochs of 6 micro-batches: every second window has 2 of them, and is divided by 4."""

from itertools import chain

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin  # noqa: F401 (the fix uses it)
from torch.utils.data import DataLoader

from museum.parts import EVEN, TinyLM, text

K = 4
batches = list(chain.from_iterable(text(6, lengths=EVEN)))
# fix: with accumulate(), where the Accelerator is created; a window goes on in the next epoch
accelerator = Accelerator(gradient_accumulation_steps=K)
# end
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = accelerator.prepare(model, optimizer)
windows, window = [], []
for epoch in range(4):
    loader = accelerator.prepare(DataLoader(batches[6 * epoch : 6 * epoch + 6], batch_size=None))
    for ids, labels in loader:
        window.append((ids, labels))
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(ids).flatten(0, 1), labels.flatten()))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            windows.append(window)
            window = []
