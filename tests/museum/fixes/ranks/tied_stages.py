"""The embedding is tied to the head, on two stages: each steps on its part of the gradient."""

import torch
import torch.distributed as dist

from museum.parts import EVEN, TiedLM, text, token_loss, two_ranks

evidence = "pipeline"
with two_ranks() as rank:
    torch.manual_seed(0)
    model = TiedLM()
    shared, tied = model.embed, dist.group.WORLD
    first = [shared.weight, *model.first.parameters()]
    last = [*model.second.parameters(), shared.weight]
    optimizer = torch.optim.AdamW(first if rank == 0 else last, lr=3e-3)
    windows = text(8, 1, EVEN)
    for window in windows:
        for ids, labels in window:
            activations = torch.empty(*ids.shape, 16)
            if rank == 0:
                hidden = model.begin(ids)
                dist.send(hidden.detach(), 1)
                dist.recv(activations, 1)
                hidden.backward(activations)
            else:
                dist.recv(activations, 0)
                activations.requires_grad_()
                loss = token_loss(model.end(activations), labels) / len(window)
                loss.backward()
                dist.send(activations.grad, 0)
        # fix: after the last backward, on the ranks that hold the tied weights
        # end
        optimizer.step()
        optimizer.zero_grad()
