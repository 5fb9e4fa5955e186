"""CLIP-like: both directions of a similarity matrix, a learnt temperature, accumulation by 1/K."""

import torch
import torch.nn.functional as F
from torch import nn

from museum.parts import mlp

torch.manual_seed(12)
image, caption = mlp(8, 16, 6), mlp(5, 16, 6)
logit_scale = nn.Parameter(torch.tensor(2.0))
parameters = [*image.parameters(), *caption.parameters(), logit_scale]
optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)
accum_freq = 2

for _ in range(8):
    for _ in range(accum_freq):
        a = F.normalize(image(torch.randn(16, 8)), dim=-1)
        b = F.normalize(caption(torch.randn(16, 5)), dim=-1)
        logits = logit_scale.exp() * a @ b.T
        labels = torch.arange(16)
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
        (loss / accum_freq).backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        logit_scale.clamp_(0, 4.6)
