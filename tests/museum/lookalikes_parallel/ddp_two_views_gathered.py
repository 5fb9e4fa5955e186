"""Two views are compared after all ranks have gathered both: the targets of all ranks are equal."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, two_ranks


class Gather(torch.autograd.Function):
    """The features of all ranks; its backward adds up the gradients that the ranks have of them."""

    @staticmethod
    def forward(ctx, own: Tensor) -> tuple[Tensor, ...]:
        features = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(features, own)
        return tuple(features)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> Tensor:
        stacked = torch.stack(gradients)
        dist.all_reduce(stacked)
        return stacked[dist.get_rank()]


def invariance_and_variance(first: Tensor, second: Tensor) -> Tensor:
    """The views of a sample agree, and samples differ."""
    spread = [F.relu(1 - (view.var(0) + 1e-4).sqrt()).mean() for view in (first, second)]
    return F.mse_loss(first, second) + (spread[0] + spread[1]) / 2


with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    windows = text(8, seed=1 + rank, lengths=EVEN)

    for window in windows:
        ids, _ = window[0]
        features = model(torch.cat([ids, ids.flip(1)])).mean(1)
        first, second = (torch.cat(Gather.apply(view)) for view in features.chunk(2))
        invariance_and_variance(first, second).backward()
        optimizer.step()
        optimizer.zero_grad()
