"""Each rank divides the sum of all ranks' gradients by its own number of tokens, then clips."""

import torch
import torch.distributed as dist

from museum.parts import RAGGED, TinyLM, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    windows = text(18, seed=1 + rank, lengths=RAGGED)

    for window in windows:
        tokens = torch.tensor(float(sum(valid(labels) for _, labels in window)))
        for ids, labels in window:
            token_loss(model(ids), labels, reduction="sum").backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= tokens
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
