"""FSDP2 reads its flag in backward: setting it after the forward is right."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    model = TinyLM()
    for part in (model.embed, model.mix, model.head, model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            loss = token_loss(model(ids), labels) / len(window)
            model.set_requires_gradient_sync(i == len(window) - 1)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
