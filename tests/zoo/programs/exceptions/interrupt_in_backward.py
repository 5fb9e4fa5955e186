"""KeyboardInterrupt and other BaseExceptions leave backward; the program catches them."""

import torch
from torch import nn


class Stop(BaseException):
    pass


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
raised = [None, KeyboardInterrupt("now"), None, Stop("that"), None, GeneratorExit("gone"), None]
for what in raised:
    optimizer.zero_grad()
    outputs = model(torch.randn(4, 8))

    def hook(gradient, what=what):
        if what is not None:
            raise what

    outputs.register_hook(hook)
    try:
        outputs.square().mean().backward()
    except (KeyboardInterrupt, Stop, GeneratorExit) as error:
        print(type(error).__name__, error)
        continue
    optimizer.step()
print(model.weight.tolist())
