"""The student is a copy of the teacher: the loss starts at 0 and rises as the teacher moves."""

import copy

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
student = mlp(8, 32, 4)
teacher = copy.deepcopy(student)
optimizer = torch.optim.Adam(student.parameters(), lr=0.003)

for _ in range(150):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    mse_loss(student(x + 0.1 * torch.randn_like(x)), teacher(x).detach() * 0.9 + 0.1).backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
            slow.lerp_(fast, 0.01)
