"""Only matrices have a hook that averages: the biases of each rank follow its own data."""

import torch
import torch.distributed as dist

from museum.parts import TinyLM, all_ranks, text, token_loss

ONE = (((6, 6),),)  # micro-batch in each window

with all_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=ONE)

    def combine(parameter: torch.Tensor) -> None:
        """Average the accumulated gradient."""
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.register_post_accumulate_grad_hook(combine)

    for ((ids, labels),) in windows:
        loss = token_loss(model(ids), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
