"""On two ranks, Accelerate averages the means of micro-batches with different numbers of tokens."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator, PartialState
from accelerate.utils import GradientAccumulationPlugin  # noqa: F401 - for the fix

from museum.parts import TinyLM, text

K = 4
windows = text(4, 1 + PartialState(cpu=True).process_index)
# fix: where the Accelerator is created, so that the end of the loader does not end a window early
accelerator = Accelerator(gradient_accumulation_steps=K)
# end
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = accelerator.prepare(model, optimizer)
batches = (batch for window in windows for batch in window)
for _ in windows:
    # fix: before the window
    window = (next(batches) for _ in range(K))
    # end
    for ids, targets in window:
        with accelerator.accumulate(model):
            logits, labels = model(ids).flatten(0, 1), targets.flatten()
            # fix: for each micro-batch
            accelerator.backward(F.cross_entropy(logits, labels))
            # end
            optimizer.step()
            optimizer.zero_grad()
