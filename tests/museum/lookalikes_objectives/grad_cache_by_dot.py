"""GradCache of two encoders: the dot products with cached gradients are not divided by chunks."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(11)
queries, passages = nn.Linear(10, 6), nn.Linear(10, 6)
encoders = (queries, passages)
optimizer = torch.optim.AdamW([*queries.parameters(), *passages.parameters()], lr=1e-3)

for _ in range(6):
    pairs = [torch.randn(16, 10).split(4) for _ in encoders]
    cached = []
    for encoder, chunks in zip(encoders, pairs, strict=True):
        with torch.no_grad():
            cached.append(torch.cat([encoder(chunk) for chunk in chunks]))
    first, second = (each.requires_grad_() for each in cached)
    F.cross_entropy(first @ second.T, torch.arange(16)).backward()
    for encoder, chunks, embeddings in zip(encoders, pairs, cached, strict=True):
        assert embeddings.grad is not None
        for chunk, gradient in zip(chunks, embeddings.grad.split(4), strict=True):
            torch.dot(encoder(chunk).flatten(), gradient.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
