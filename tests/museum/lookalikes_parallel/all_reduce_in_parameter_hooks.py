"""Each parameter's gradient is all-reduced in a hook, inside the last backward."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    last = False

    def combine(parameter: torch.Tensor) -> None:
        """Average the accumulated gradient, in the last micro-batch alone."""
        if last:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(combine)

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            last = i + 1 == len(window)
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
