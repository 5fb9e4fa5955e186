"""Contrastive accumulation over cached features: passes of one loss add up."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(5)
model = mlp(8, 16, 6)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = [[torch.randn(2, 24, 8)] for _ in range(6)]
accum_freq = 4

for (views,) in windows:
    micro_batches = views.split(24 // accum_freq, dim=1)
    with torch.no_grad():
        cached = [F.normalize(model(batch), dim=-1) for batch in micro_batches]
    for index, batch in enumerate(micro_batches):
        features = F.normalize(model(batch), dim=-1)
        first, second = torch.cat([*cached[:index], features, *cached[index + 1 :]], dim=1)
        logits, pairs = first @ second.T / 0.1, torch.arange(24)
        loss = (F.cross_entropy(logits, pairs) + F.cross_entropy(logits.T, pairs)) / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
