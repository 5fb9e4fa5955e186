"""The backwards of an attack leave gradients in the parameters, below the training's."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp, points

torch.manual_seed(0)
model = mlp(8, 16, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
windows, objective = [], "rows"

for step in range(12):
    [(x, _)] = points([16], step)
    y = x[:, :3].argmax(1)
    change = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        cross_entropy(model(x + change), y).backward()
        change = (change + 0.03 * change.grad.sign()).detach().requires_grad_()
    # fix: after backwards that only serve the gradient of an input, as in an attack
    # end
    attacked = x + change.detach()
    windows.append([(attacked, y)])
    cross_entropy(model(attacked), y).backward()
    optimizer.step()
    optimizer.zero_grad()
