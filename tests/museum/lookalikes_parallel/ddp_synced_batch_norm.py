"""Statistics over all ranks, as SyncBatchNorm takes them: collectives in every backward."""

from contextlib import nullcontext

import torch
import torch.distributed.nn.functional as together
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks


class Normed(TinyLM):
    """Centres the hidden states by the mean of all ranks."""

    def features(self, ids):
        hidden = super().features(ids)
        return hidden - together.all_reduce(hidden.mean((0, 1))) / 2


with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(Normed())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            last = i + 1 == len(window)
            with nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids), labels) / len(window)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
