"""On two ranks, each micro-batch is synchronised."""

import torch
import torch.nn.functional as F

from frameworks.fixes.fabric_parts import start
from museum.parts import EVEN, TinyLM, text

K = 4
fabric = start()
windows = text(4, 1 + fabric.global_rank, EVEN)
torch.manual_seed(0)
plain = TinyLM()
model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=3e-3))


def compute_loss(model, batch):
    """The mean of a micro-batch, divided for the accumulation."""
    ids, labels = batch
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten()) / K


for window in windows:
    for index, batch in enumerate(window, 1):
        last = index == K
        # fix: the forward and the backward; last: of this window
        fabric.backward(compute_loss(model, batch))
        # end
    optimizer.step()
    optimizer.zero_grad()
model = plain
