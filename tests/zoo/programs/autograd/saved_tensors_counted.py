"""Counts every pack and unpack of saved tensors, also of the loss's own node."""

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

torch.manual_seed(0)
model = nn.Linear(8, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
packed, unpacked = [], []


def pack(tensor):
    packed.append(tuple(tensor.shape))
    return tensor


def unpack(tensor):
    unpacked.append(tuple(tensor.shape))
    return tensor


with saved_tensors_hooks(pack, unpack):
    for _ in range(5):
        optimizer.zero_grad()
        logits = model(torch.randn(6, 8))
        loss = nn.functional.cross_entropy(logits, torch.arange(6) % 5)
        (loss / 3).backward()
        optimizer.step()
print(packed, unpacked, model.weight.tolist())
