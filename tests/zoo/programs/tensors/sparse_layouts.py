"""Parameters and gradients in compressed sparse layouts."""

import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", message=".*beta state.*")
torch.manual_seed(0)
adjacency = torch.eye(8).to_sparse_csr()
weight = nn.Parameter(torch.randn(8, 4))
values = nn.Parameter(torch.ones(8))
sparse = nn.Parameter(torch.eye(4).to_sparse())
optimizer = torch.optim.SGD([weight, values, sparse], lr=0.05)
for _ in range(8):
    optimizer.zero_grad()
    propagated = torch.sparse.mm(adjacency, weight)
    graph = torch.sparse_coo_tensor(torch.arange(8).repeat(2, 1), values, (8, 8))
    mixed = torch.sparse.mm(graph, propagated)
    (mixed.square().mean() + torch.sparse.sum(sparse * sparse)).backward()
    print(sparse.grad.layout, weight.grad.layout)
    optimizer.step()
print(weight.tolist(), values.tolist(), sparse.to_dense().tolist())
