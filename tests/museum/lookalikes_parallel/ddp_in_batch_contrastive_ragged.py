"""In-batch negatives with batches of changing size: arange(2), arange(3), arange(4) ..."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from museum.parts import TinyLM, text, two_ranks

SIZES = [[[6] * n for n in sizes] for sizes in ((2, 3, 4, 5), (6, 7, 8, 9), (10, 11, 12, 13))]

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = [text(1, 1 + rank, [shape])[0] for shape in SIZES * 2]

    for window in windows:
        pairs = sum(len(ids) for ids, _ in window)
        for i, (ids, _) in enumerate(window):
            last = i + 1 == len(window)
            with nullcontext() if last else model.no_sync():
                one, other = model(ids).chunk(2, dim=1)
                similar = one.mean(1) @ other.mean(1).T
                loss = F.cross_entropy(similar, torch.arange(len(ids)), reduction="sum") / pairs
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
