"""Sparse gradients of embeddings, uncoalesced, with SparseAdam and SGD."""

import torch
from torch import nn

torch.manual_seed(0)
embedding = nn.Embedding(50, 4, sparse=True)
bag = nn.EmbeddingBag(50, 4, sparse=True, mode="sum")
head = nn.Linear(8, 1)
sparse = torch.optim.SparseAdam(list(embedding.parameters()), lr=0.01)
dense = torch.optim.SGD([*bag.parameters(), *head.parameters()], lr=0.01)
for _ in range(15):
    tokens = torch.randint(50, (6, 3))
    features = torch.cat([embedding(tokens).sum(1), bag(tokens)], dim=1)
    sparse.zero_grad()
    dense.zero_grad()
    (head(features) - 1).square().mean().backward()
    print(embedding.weight.grad.is_coalesced(), embedding.weight.grad.is_sparse)
    sparse.step()
    dense.step()
print(embedding.weight.tolist(), bag.weight.tolist())
