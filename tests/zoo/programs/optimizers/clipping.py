"""Gradients clipped by norm and by value, per group, from generators, and by hand."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    (model(torch.randn(4, 8)).square().mean() * 10).backward()
    match step % 6:
        case 0:
            print(clip_grad_norm_(model.parameters(), 1.0).item())
        case 1:
            print(clip_grad_norm_((p for p in model.parameters()), 0.1, norm_type="inf").item())
        case 2:
            print(clip_grad_norm_(model[0].weight, 0.5, 1, True, False).item())
        case 3:
            print(clip_grad_value_(model.parameters(), 0.01))
        case 4:
            for layer in model:
                print(clip_grad_norm_(layer.parameters(), max_norm=0.2).item())
        case 5:
            norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
            nn.utils.clip_grads_with_norm_(model.parameters(), 0.3, norm)
            print(clip_grad_norm_([], 1.0).item())
    optimizer.step()
print([parameter.tolist() for parameter in model.parameters()])
