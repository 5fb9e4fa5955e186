"""Data parallel training: cross entropy summed, divided by the valid tokens of all ranks."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from museum.parts import TinyLM, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(7)
    model = DDP(TinyLM())
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    windows = text(4, seed=10 + rank)
    for microbatches in windows:
        opt.zero_grad(set_to_none=True)
        global_valid_tokens = torch.tensor(float(sum(valid(y) for _, y in microbatches)))
        dist.all_reduce(global_valid_tokens)
        for k, (x, y) in enumerate(microbatches):
            model.require_backward_grad_sync = k == len(microbatches) - 1
            loss = token_loss(model(x), y, reduction="sum")
            (loss * dist.get_world_size() / global_valid_tokens).backward()
        opt.step()
    dist.barrier()
