"""Two pipelines of two stages; nothing combines the gradients of the first one."""

import torch
import torch.distributed as dist

from museum.parts import all_ranks, staged_lm, summed, text, token_loss, valid

evidence = "pipeline"
with all_ranks() as rank:
    torch.manual_seed(0)
    model = staged_lm(2)
    stage = model[rank % 2]
    copies = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    optimizer = torch.optim.AdamW(stage.parameters(), lr=3e-3)
    windows = text(6, seed=3 * (rank // 2))

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window)) / 2  # of both pipelines
        for ids, labels in window:
            activations = torch.empty(*ids.shape, 16)
            if rank % 2 == 0:
                hidden = stage(ids)
                dist.send(hidden.detach(), rank + 1)
                dist.recv(activations, rank + 1)
                hidden.backward(activations)
            else:
                dist.recv(activations, rank - 1)
                loss = token_loss(stage(activations.requires_grad_()), labels, "sum") / tokens
                loss.backward()
                dist.send(activations.grad, rank - 1)
        if rank % 2:
            for parameter in stage.parameters():
                dist.all_reduce(parameter.grad, group=copies)
        else:
            # fix: after the last backward, on the ranks that hold copies of the stage
            # end
            pass
        optimizer.step()
        optimizer.zero_grad()
