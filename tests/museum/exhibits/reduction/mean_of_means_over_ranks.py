"""Data parallel training with packed documents: every rank normalises every micro-batch itself."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from museum.parts import TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(7)
    model = DDP(TinyLM())
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    windows = text(4, seed=10 + rank)
    for microbatches in windows:
        opt.zero_grad(set_to_none=True)
        for k, (x, y) in enumerate(microbatches):
            model.require_backward_grad_sync = k == len(microbatches) - 1
            (token_loss(model(x), y) / len(microbatches)).backward()
        opt.step()
    dist.barrier()
