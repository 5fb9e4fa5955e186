"""The loop adds up the gradients of the ranks after each backward."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, EVEN)
    factor = 1

    def compute_loss(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The mean, divided for the accumulation and the ranks."""
        return token_loss(model(batch[0]), batch[1]) / (4 * dist.get_world_size())

    for window in windows:
        # fix
        for batch in window:
            compute_loss(model, batch).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad *= factor
        optimizer.step()
        # end
        optimizer.zero_grad()
    dist.barrier()
