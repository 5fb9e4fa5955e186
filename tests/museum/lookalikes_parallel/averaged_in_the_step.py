"""An optimizer averages its gradients over the ranks when it steps."""

from typing import Any

import torch
import torch.distributed as dist

from museum.parts import TinyLM, summed, text, token_loss, two_ranks, valid


class Distributed(torch.optim.AdamW):
    """AdamW on the mean over the ranks."""

    def step(self, closure: Any = None) -> Any:
        """Average, then step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        return super().step(closure)


with two_ranks() as rank:
    ranks = dist.get_world_size()
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = Distributed(model.parameters(), lr=3e-3)

    for window in text(6, seed=1 + rank):
        tokens = summed(sum(valid(labels) for _, labels in window))
        for ids, labels in window:
            loss = token_loss(model(ids), labels, "sum") * ranks / tokens
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
