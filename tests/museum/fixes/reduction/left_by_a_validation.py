"""A validation measures gradients of the input, and leaves those of the parameters behind."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp, points

torch.manual_seed(0)
model = mlp(8, 16, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
windows, objective = [], "rows"

for step in range(24):
    [(x, _)] = points([16], step)
    y = x[:, :3].argmax(1)
    windows.append([(x, y)])
    cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 6 == 5:
        for held_out, _ in points([16, 16], 1000):
            inputs = held_out.requires_grad_()
            cross_entropy(model(inputs), inputs[:, :3].argmax(1)).backward()
        # fix: after backwards that only measure gradients, as in a validation
        # end
