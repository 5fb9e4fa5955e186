"""Saved-tensor hooks that raise when anybody unpacks outside backward, and a disabled region."""

import torch
from torch import nn
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks

torch.manual_seed(0)
model = nn.Linear(8, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def unpack(tensor):
    if torch._C._current_graph_task_id() == -1:
        raise RuntimeError("unpacked outside of backward")
    return tensor


for step in range(6):
    optimizer.zero_grad()
    if step % 2:
        with disable_saved_tensors_hooks("not here"):
            loss = nn.functional.cross_entropy(model(torch.randn(6, 8)), torch.arange(6) % 5)
    else:
        with saved_tensors_hooks(lambda tensor: tensor, unpack):
            loss = nn.functional.cross_entropy(model(torch.randn(6, 8)), torch.arange(6) % 5)
    loss.backward()
    optimizer.step()
print(model.weight.tolist())
