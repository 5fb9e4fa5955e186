"""Each rank's mean is weighted by its share of the tokens, and the sum is averaged again."""

import torch
import torch.distributed as dist

from museum.parts import IGNORED, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, [[(5 + 7 * rank, 3)], [(11, 9 - 4 * rank)]])
    for ((ids, targets),) in windows:
        token_loss(model(ids), targets).backward()
        tokens = (targets != IGNORED).sum()
        all_tokens = tokens.clone()
        dist.all_reduce(all_tokens)
        for p in model.parameters():
            assert p.grad is not None
            # fix: after the last backward, for each parameter p
            p.grad *= tokens / all_tokens / dist.get_world_size()
            dist.all_reduce(p.grad)
            # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
