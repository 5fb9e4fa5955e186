"""Non-reentrant checkpointing, nested, with early stop and its debug mode."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

torch.manual_seed(0)
inner = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.1))
outer = nn.Linear(8, 8)
optimizer = torch.optim.Adam([*inner.parameters(), *outer.parameters()], lr=0.01)


def block(inputs):
    return outer(checkpoint(inner, inputs, use_reentrant=False))


for step in range(10):
    optimizer.zero_grad()
    with set_checkpoint_early_stop(step % 2 == 0):
        loss = checkpoint(block, torch.randn(4, 8), use_reentrant=False).square().mean()
    loss.backward()
    optimizer.step()
print(inner[0].weight.tolist(), outer.bias.tolist())
