"""The closure of LBFGS and of SGD raises; the program catches it and goes on."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
inputs = torch.randn(16, 4)
optimizers = [
    torch.optim.LBFGS(model.parameters(), max_iter=5),
    torch.optim.SGD(model.parameters(), lr=0.01),
]
calls = 0


def closure():
    global calls
    calls += 1
    if calls % 7 == 0:
        raise OSError("the data is gone")
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    return loss


for step in range(8):
    try:
        print(float(optimizers[step % 2].step(closure)))
    except OSError as error:
        print(error)
print(calls, model.weight.tolist())
