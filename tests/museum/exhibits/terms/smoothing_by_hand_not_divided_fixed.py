"""The loss is divided by the accumulation steps."""

import torch

from museum.parts import mlp

torch.manual_seed(36)
model = mlp(8, 16, 24)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
accumulation_steps, windows = 4, []

for _ in range(6):
    window = [(torch.randn(10, 8), torch.randint(0, 24, (10,))) for _ in range(accumulation_steps)]
    for inputs, labels in window:
        soft = torch.full((10, 24), 0.1 / 24)
        soft.scatter_(1, labels.unsqueeze(1), 0.9 + 0.1 / 24)
        loss = -(soft * model(inputs).log_softmax(-1)).sum(-1).mean()
        (loss / accumulation_steps).backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
