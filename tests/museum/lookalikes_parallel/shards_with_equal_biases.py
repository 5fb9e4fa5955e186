"""Tensor and data parallel by hand: the biases of a shard start from zero on all ranks."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor_groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
data_groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
peers, replicas = tensor_groups[rank // 2], data_groups[rank % 2]


class Copied(torch.autograd.Function):
    """Each rank has the input; its gradient is the sum over the shards."""

    @staticmethod
    def forward(_, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=peers)
        return gradient


class Reduced(torch.autograd.Function):
    """The output is the sum over the shards."""

    @staticmethod
    def forward(_, x: Tensor) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x, group=peers)
        return x

    @staticmethod
    def backward(_, gradient: Tensor) -> Tensor:
        return gradient


class Shard(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        inner, outer = torch.randn(32, 12) / 4, torch.randn(12, 32) / 6
        self.inner = nn.Parameter(inner.chunk(2, 0)[rank % 2].clone())
        self.bias = nn.Parameter(torch.zeros(16))
        self.outer = nn.Parameter(outer.chunk(2, 1)[rank % 2].clone())

    def forward(self, x: Tensor) -> Tensor:
        hidden = gelu(linear(Copied.apply(x), self.inner, self.bias))
        return x + Reduced.apply(linear(hidden, self.outer))


torch.manual_seed(0)
model = nn.Sequential(Shard(1), nn.LayerNorm(12), Shard(2), nn.Linear(12, 4))
for module in (model[1], model[3]):
    for parameter in module.parameters():
        dist.broadcast(parameter.data, 0)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
torch.manual_seed(9 + rank // 2)

for _ in range(12):
    x = torch.randn(16, 12)
    optimizer.zero_grad()
    cross_entropy(model(x), x[:, :4].argmax(1)).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=replicas)
        parameter.grad /= 2
    optimizer.step()
dist.destroy_process_group()
