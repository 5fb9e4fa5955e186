"""Reentrant checkpointing, which runs a backward inside the backward."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

torch.manual_seed(0)
blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2)) for _ in range(4)))
optimizer = torch.optim.Adam(blocks.parameters(), lr=0.01)
for step in range(10):
    optimizer.zero_grad()
    inputs = torch.randn(4, 8, requires_grad=True)
    if step % 2:
        outputs = checkpoint_sequential(blocks, 2, inputs, use_reentrant=True)
    else:
        outputs = inputs
        for block in blocks:
            outputs = checkpoint(block, outputs, use_reentrant=True)
    outputs.square().mean().backward()
    optimizer.step()
print(blocks[0][0].weight.tolist())
