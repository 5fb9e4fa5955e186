"""Distillation of a classifier: half the labels, half the teacher at temperature two."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(15)
teacher, student = mlp(8, 32, 5), mlp(8, 8, 5)
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-3)
T = 2.0

for _ in range(8):
    x, y = torch.randn(24, 8), torch.randint(0, 5, (24,))
    with torch.no_grad():
        soft = F.softmax(teacher(x) / T, dim=-1)
    logits = student(x)
    divergence = F.kl_div(F.log_softmax(logits / T, dim=-1), soft, reduction="batchmean") * T**2
    loss = 0.5 * F.cross_entropy(logits, y) + 0.5 * divergence
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
