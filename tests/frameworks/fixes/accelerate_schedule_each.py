"""The schedule is planned in optimizer steps, and advances on every micro-batch."""

from itertools import chain

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader

from museum.parts import EVEN, TinyLM, text

evidence = "rate"
K = 4
windows = text(8, lengths=EVEN)
accelerator = Accelerator(gradient_accumulation_steps=K)
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def planned(step):
    """Linearly down to a tenth over the run."""
    return 3e-3 * (1 - 0.9 * step / len(windows))


scheduler = torch.optim.lr_scheduler.LinearLR(
    optimizer, start_factor=1.0, end_factor=0.1, total_iters=len(windows)
)
loader = DataLoader(list(chain.from_iterable(windows)), batch_size=None)
model, loader = accelerator.prepare(model, loader)
# fix: prepare the optimizer; a prepared scheduler steps once for each process
optimizer = accelerator.prepare(optimizer)
# end
for ids, labels in loader:
    with accelerator.accumulate(model):
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        accelerator.backward(loss)
        # fix: on every micro-batch, Accelerate skips the steps inside a window
        optimizer.step()
        scheduler.step()
        # end
        optimizer.zero_grad()
