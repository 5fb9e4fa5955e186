"""Three tasks with a head each; every task has its own batch size and calls backward."""

import torch
import torch.nn.functional as F
from torch import nn

from museum.parts import mlp

torch.manual_seed(14)
body = mlp(8, 16, 16)
tasks = {3: 12, 5: 4, 2: 8}  # classes and batch size
heads = nn.ModuleDict({str(classes): nn.Linear(16, classes) for classes in tasks})
optimizer = torch.optim.AdamW([*body.parameters(), *heads.parameters()], lr=2e-3)
K = 2

for _ in range(6):
    for _ in range(K):
        for classes, rows in tasks.items():
            logits = heads[str(classes)](body(torch.randn(rows, 8)))
            (F.cross_entropy(logits, torch.randint(0, classes, (rows,))) / K).backward()
    optimizer.step()
    optimizer.zero_grad()
