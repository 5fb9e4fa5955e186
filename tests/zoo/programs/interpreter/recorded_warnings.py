"""Records all warnings while it trains, with the files that they are attributed to."""

import warnings

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train(steps=10):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model.register_full_backward_hook(lambda *_: None)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward(create_graph=True)
        optimizer.step()
        nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4)).backward()
        nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.zeros(4, 1), reduce=True)
        optimizer.zero_grad(set_to_none=True)
    torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=0.1), 1).step()
for warning in caught:
    print(warning.category.__name__, warning.filename.rpartition("/")[2], str(warning.message)[:50])
print(model.weight.tolist())
