"""It is divided by K."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(85)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
windows = []

for _ in range(6):
    window = [(torch.randn(12, 8), torch.randn(12, 5).softmax(-1)) for _ in range(4)]
    for inputs, teacher in window:
        loss = F.kl_div(F.log_softmax(model(inputs), -1), teacher, reduction="mean")
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
