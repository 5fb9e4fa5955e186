"""A head outside the DDP wrapper, whose gradients are summed over the ranks."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks


class Headless(torch.nn.Module):
    """The features of the model."""

    def __init__(self, lm: TinyLM) -> None:
        super().__init__()
        self.embed, self.mix = lm.embed, lm.mix
        self._features = (lm.features,)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Features [rows, length, width]."""
        return self._features[0](ids)


with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    body = DistributedDataParallel(Headless(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, [window[:1] for window in EVEN])
    for ((ids, labels),) in windows:
        token_loss(model.head(body(ids)), labels).backward()
        for p in model.head.parameters():
            assert p.grad is not None
            # fix: after the last backward, for each parameter p outside the wrapper
            dist.all_reduce(p.grad)
            # end
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
