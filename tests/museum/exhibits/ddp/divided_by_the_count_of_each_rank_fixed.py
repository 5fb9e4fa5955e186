"""The sum of the ranks' gradients is divided by the tokens of all ranks, then clipped."""

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
        dist.all_reduce(tokens)
        for ids, labels in window:
            token_loss(model(ids), labels, reduction="sum").backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= tokens
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
