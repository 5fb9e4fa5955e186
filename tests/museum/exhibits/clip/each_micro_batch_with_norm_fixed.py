"""clip_grads_with_norm_ runs once, on the gradient of the whole window."""

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, seed=1 + rank, lengths=EVEN)
    max_norm = 0.2

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            with nullcontext() if i == len(window) - 1 else model.no_sync():
                loss = token_loss(model(ids), labels) / len(window)
                loss.backward()
        norm = get_total_norm([p.grad for p in model.parameters()])
        clip_grads_with_norm_(model.parameters(), max_norm, norm)
        optimizer.step()
        optimizer.zero_grad()
