"""Calls of backward that raise, and what they raise."""

import torch
from torch import nn

model = nn.Linear(4, 2)
nn.init.ones_(model.weight)
nn.init.ones_(model.bias)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
calls = [
    lambda out: out.backward(),
    lambda out: torch.autograd.backward(),
    lambda out: torch.autograd.backward(None),
    lambda out: torch.autograd.backward([]),
    lambda out: torch.autograd.backward(3),
    lambda out: torch.autograd.backward(out.detach().sum()),
    lambda out: out.sum().backward(torch.ones(3)),
    lambda out: out.sum().backward(inputs=[]),
    lambda out: out.sum().backward(unknown=1),
    lambda out: torch.autograd.backward([out.sum()], [torch.tensor(1.0)], nonsense=True),
    lambda out: torch.autograd.backward(out.sum(), grad_variables=torch.tensor(2.0)),
]
for number, call in enumerate(calls):
    optimizer.zero_grad()
    try:
        call(model(torch.ones(3, 4)))
        print(number, "fine")
    except Exception as error:
        print(number, type(error).__name__, str(error).splitlines()[0])
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
print(model.weight.tolist())
