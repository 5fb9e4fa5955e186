"""A whole training step, backward included, in one compiled function with graph breaks."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


@torch.compile(backend="eager")
def train(inputs):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


print([train(torch.randn(4, 8)).item() for _ in range(8)])
print([parameter.tolist() for parameter in model.parameters()])
