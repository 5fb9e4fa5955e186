"""One loss trains two parts: the body steps on each batch, the head on every fourth."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
body, head = nn.Linear(8, 8), nn.Linear(8, 5)
body_optimizer = torch.optim.SGD(body.parameters(), lr=1e-2)
head_optimizer = torch.optim.SGD(head.parameters(), lr=1e-2)
K = 4

for i in range(48):
    body_optimizer.zero_grad()
    logits = head(torch.tanh(body(torch.randn(16, 8))))
    F.cross_entropy(logits, torch.randint(0, 5, (16,))).backward()
    if (i + 1) % K == 0:
        for parameter in head.parameters():
            parameter.grad /= K
        head_optimizer.step()
        head_optimizer.zero_grad()
    body_optimizer.step()
