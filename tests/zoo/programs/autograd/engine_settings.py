"""One thread for the engine, batched gradients, and unused inputs."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
spare = nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD([*model.parameters(), spare], lr=0.05)
for _ in range(8):
    optimizer.zero_grad()
    outputs = model(torch.randn(4)).tanh()
    (rows,) = torch.autograd.grad(
        outputs, model.weight, torch.eye(3), is_grads_batched=True, retain_graph=True
    )
    unused = torch.autograd.grad(outputs.sum(), spare, allow_unused=True, retain_graph=True)
    with torch.autograd.set_multithreading_enabled(False):
        outputs.sum().backward()
    print(torch.equal(rows.sum(0), model.weight.grad), unused)
    optimizer.step()
print(model.weight.tolist())
