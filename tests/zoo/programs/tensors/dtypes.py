"""Parameters in every floating type, scalars, empty ones, and ones of ten dimensions."""

import torch
from torch import nn

torch.manual_seed(0)
parameters = [
    nn.Parameter(torch.randn(4).to(dtype))
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
]
parameters += [
    nn.Parameter(torch.tensor(2.0)),
    nn.Parameter(torch.empty(0, 3)),
    nn.Parameter(torch.randn([2] * 10)),
    nn.Parameter(torch.randn(3).expand(3, 3)[0]),
    nn.Parameter(torch.randn(6, 6)[::2, ::3]),
]
frozen = nn.Parameter(torch.arange(3), requires_grad=False)
optimizer = torch.optim.SGD([*parameters, frozen], lr=0.05)
for _ in range(10):
    optimizer.zero_grad()
    sum(parameter.double().square().sum() for parameter in parameters).backward()
    optimizer.step()
print([parameter.tolist() for parameter in parameters], frozen.tolist())
