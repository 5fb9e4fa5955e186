"""Parameters come and go: groups added, replaced, emptied, and parameters swapped."""

import torch
from torch import nn

torch.manual_seed(0)
layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
optimizer = torch.optim.Adam(layers[0].parameters(), lr=0.01)


def step():
    optimizer.zero_grad()
    hidden = torch.randn(2, 4)
    for layer in layers:
        hidden = layer(hidden).tanh()
    hidden.square().mean().backward()
    optimizer.step()


step()
optimizer.add_param_group({"params": layers[1].parameters(), "lr": 0.1})
step()
optimizer.param_groups[0]["params"].append(layers[2].weight)
step()
optimizer.param_groups[0]["params"] = []
step()
optimizer.param_groups = [{**optimizer.param_groups[1], "params": list(layers[3].parameters())}]
step()
layers[3].weight = nn.Parameter(torch.eye(4))
step()
layers[3].weight.data = torch.zeros(4, 4)
layers[3].bias.requires_grad_(False)
step()
layers[3].double().float()
step()
optimizer.state.clear()
step()
print([layer.weight.tolist() for layer in layers])
