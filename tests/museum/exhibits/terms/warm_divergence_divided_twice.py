"""A divergence times the squared temperature is divided by K in two places."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(83)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
windows = []

for _ in range(6):
    window = [(torch.randn(12, 8), torch.randn(12, 5).softmax(-1)) for _ in range(4)]
    for inputs, teacher in window:
        log_p = F.log_softmax(model(inputs) / 4, -1)
        loss = F.kl_div(log_p, teacher, reduction="batchmean") * 4**2 / len(window)
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
