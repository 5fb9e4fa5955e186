"""On two ranks, the losses are added up: ``loss.backward()`` does not divide by K."""

from itertools import chain

import torch
import torch.nn.functional as F
from accelerate import Accelerator, PartialState

from museum.parts import EVEN, TinyLM, text

K = 4
windows = text(4, 1 + PartialState(cpu=True).process_index, EVEN)
# fix: where the Accelerator is created
accelerator = Accelerator()
# end
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = accelerator.prepare(model, optimizer)


def compute_loss(model, batch):
    """The mean over the tokens of a micro-batch."""
    ids, labels = batch
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


for index, batch in enumerate(chain.from_iterable(windows)):
    # fix: for each micro-batch
    model.require_backward_grad_sync = (index + 1) % K == 0
    compute_loss(model, batch).backward()
    if (index + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
    # end
