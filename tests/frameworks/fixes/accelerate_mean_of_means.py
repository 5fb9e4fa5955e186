"""Accelerate averages the means of micro-batches with different numbers of tokens."""

from itertools import chain, islice

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin  # noqa: F401 - for the fix
from torch.utils.data import DataLoader

from museum.parts import TinyLM, text

K = 4
windows = text(4)
# fix: where the Accelerator is created, so that the end of the loader does not end a window early
accelerator = Accelerator(gradient_accumulation_steps=K)
# end
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(list(chain.from_iterable(windows)), batch_size=None)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
batches = iter(loader)
for _ in windows:
    # fix: before the window
    window = islice(batches, K)
    # end
    for ids, targets in window:
        with accelerator.accumulate(model):
            logits, labels = model(ids).flatten(0, 1), targets.flatten()
            # fix: for each micro-batch
            accelerator.backward(F.cross_entropy(logits, labels))
            # end
            optimizer.step()
            optimizer.zero_grad()
