"""Each parameter's gradient is averaged and stepped in its hook, over all tokens already."""

import torch
import torch.distributed as dist

from museum.parts import TinyLM, all_ranks, summed, text, token_loss, valid

LENGTHS = (((5, 3),), ((11, 9),), ((4, 2),), ((12, 7),))

with all_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizers = {p: torch.optim.AdamW([p], lr=3e-3) for p in model.parameters()}
    windows = text(6, seed=1 + rank, lengths=LENGTHS)

    def step_now(parameter: torch.Tensor) -> None:
        """Combine the gradient of one parameter, and step it."""
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_now)

    for ((ids, labels),) in windows:
        tokens = summed(valid(labels))
        loss = token_loss(model(ids), labels, "sum") / tokens
        loss.backward()
