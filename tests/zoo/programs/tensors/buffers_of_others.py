"""Parameters that live in memory of others: an array, a mapped file, one flat buffer."""

import tempfile

import torch
from torch import nn

torch.manual_seed(0)
memory = bytearray(32)
array = nn.Parameter(torch.frombuffer(memory, dtype=torch.float32))
with tempfile.NamedTemporaryFile() as file:
    mapped = nn.Parameter(torch.from_file(file.name, shared=True, size=8))
    flat, flat_gradient = torch.randn(16), torch.zeros(16)
    views = [nn.Parameter(piece) for piece in flat.split(4)]
    for view, gradient in zip(views, flat_gradient.split(4)):
        view.grad = gradient
    optimizer = torch.optim.SGD([array, mapped, *views], lr=0.05)
    for _ in range(10):
        flat_gradient.zero_()
        optimizer.zero_grad(set_to_none=False)
        sum((parameter - 1).square().sum() for parameter in [array, mapped, *views]).backward()
        flat_gradient.mul_(0.5)
        optimizer.step()
    print(bytes(memory).hex(), mapped.tolist(), flat.tolist())
    del optimizer, mapped
