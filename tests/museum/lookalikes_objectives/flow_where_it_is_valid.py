"""Optical flow: refined predictions weigh more, and invalid pixels are zero in a mean over all."""

import torch
from torch import nn

torch.manual_seed(35)
model = nn.Linear(9, 18)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
micro_batches, predictions, gamma = 3, 4, 0.8

for _ in range(6):
    for _ in range(micro_batches):
        frames, flow = torch.randn(4, 9), torch.randn(4, 18)
        valid = (torch.rand(4, 18) > 0.3).float()
        loss = torch.zeros(())
        for index in range(predictions):
            errors = (model(frames * (1 + index)) - flow).abs()
            loss = loss + gamma ** (predictions - 1 - index) * (valid * errors).mean()
        (loss / micro_batches).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
