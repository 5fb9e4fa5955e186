"""Two losses on the same labels have a backward each; the ranks average after both."""

import torch
import torch.distributed as dist

from museum.parts import TinyLM, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    ranks = dist.get_world_size()
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for window in text(6, seed=1 + rank):
        tokens = summed(sum(valid(labels) for _, labels in window))
        for ids, labels in window:
            loss = token_loss(model(ids), labels, "sum") * ranks / tokens
            loss.backward()
            noisy = torch.where(torch.rand(ids.shape) < 0.2, 0, ids)
            consistency = 0.3 * token_loss(model(noisy), labels, "sum") * ranks / tokens
            consistency.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        optimizer.zero_grad()
