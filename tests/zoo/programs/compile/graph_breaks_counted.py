"""Counts graphs, graph breaks and recompilations of a training."""

import torch
from torch import nn
from torch._dynamo.utils import counters

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 4))
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    outputs = compiled(torch.randn(4 + step % 2, 8))
    nn.functional.cross_entropy(outputs, torch.zeros(4 + step % 2, dtype=torch.long)).backward()
    optimizer.step()
print(dict(counters["stats"]), dict(counters["graph_break"]), dict(counters["frames"]))
print([parameter.tolist() for parameter in model.parameters()])
