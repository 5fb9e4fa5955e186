"""SimSiam: the mean of two negative cosines, each against a view without gradients."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(12)
model = mlp(8, 16, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
accumulation = 4
predictor = mlp(8, 8)
optimizer.add_param_group({"params": predictor.parameters()})

for _ in range(8):
    for _ in range(accumulation):
        x = torch.randn(12, 8)
        first, second = (model(x + 0.1 * torch.randn(12, 8)) for _ in range(2))
        p, q = predictor(first), predictor(second)
        one = F.cosine_similarity(p, second.detach(), dim=-1).mean()
        other = F.cosine_similarity(q, first.detach(), dim=-1).mean()
        loss = -(one + other) * 0.5
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
