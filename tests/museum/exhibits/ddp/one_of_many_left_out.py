"""The all-reduce skips one bias in the middle of a deep model."""

import torch
import torch.distributed as dist

from museum.parts import all_ranks, mlp, points

with all_ranks() as rank:
    torch.manual_seed(0)
    model = mlp(8, *[12] * 8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = [points([8, 8], seed=10 * step + rank) for step in range(6)]

    for window in windows:
        for x, y in window:
            loss = torch.nn.functional.mse_loss(model(x), y) / len(window)
            loss.backward()
        for index, parameter in enumerate(model.parameters()):
            if index != 7:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
