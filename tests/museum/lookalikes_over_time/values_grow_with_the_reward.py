"""The targets of a value function grow with the policy, and the squared error with them."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model, target = mlp(8, 32, 2), mlp(8, 32, 2)
target.load_state_dict(model.state_dict())
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

for step in range(400):
    x, y = torch.randn(32, 8), torch.randn(32, 8)
    reward = 3 * x[:, 0] * (step > 20)  # none is reached at first
    with torch.no_grad():
        goal = reward + 0.95 * target(y).max(-1).values
    optimizer.zero_grad()
    mse_loss(model(x)[:, 0], goal).backward()
    optimizer.step()
    if step % 20 == 0:
        target.load_state_dict(model.state_dict())
