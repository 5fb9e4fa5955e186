"""A head beside the DDP model: the optimizer has it, DDP does not."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, VOCABULARY, TinyLM, text, token_loss, two_ranks


def make_optimizer(parameters):
    """Over the parameters of a module."""
    return torch.optim.AdamW(parameters, lr=3e-3)


with two_ranks() as rank:
    torch.manual_seed(0)
    body, head = TinyLM(), nn.Linear(VOCABULARY, VOCABULARY)
    plain = nn.Sequential(body, head)
    # fix: where the model is wrapped, after the last module is added and any requires_grad_(True)
    model = nn.Sequential(DistributedDataParallel(body), head)
    optimizer = make_optimizer(model.parameters())
    # end
    windows = text(4, 1 + rank, [window[:1] for window in EVEN])
    for ((ids, labels),) in windows:
        token_loss(model(ids), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
