"""The sum over the ranks is taken after each backward, of all that .grad holds."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks


def combined(model):
    """Add up the gradients of the ranks."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / (len(window) * dist.get_world_size())
            loss.backward()
            combined(model)
        optimizer.step()
        optimizer.zero_grad()
