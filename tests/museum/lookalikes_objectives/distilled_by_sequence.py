"""A divergence of each sequence, with the square of the temperature in front of it."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

K, TEMPERATURE = 4, 3.0
torch.manual_seed(12)
student, teacher = mlp(8, 16, 18), mlp(8, 32, 18)
optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)

for _ in range(7):
    for _ in range(K):
        lengths = torch.randint(4, 20, (6, 1))
        mask = (torch.arange(20) < lengths).unsqueeze(-1).float()
        x = torch.randn(6, 20, 8)
        log_p = F.log_softmax(student(x) / TEMPERATURE, -1) * mask
        with torch.no_grad():
            p = F.softmax(teacher(x) / TEMPERATURE, -1) * mask
        divergence = F.kl_div(log_p, p, reduction="batchmean")
        (divergence * TEMPERATURE**2 / K).backward()
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
