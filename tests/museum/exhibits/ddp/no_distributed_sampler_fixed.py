"""DistributedSampler gives each rank its part."""

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from museum.parts import TinyLM, sentences, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    corpus = [tuple(x[0] for x in sentences((8,), generator)) for _ in range(48)]
    sampler = DistributedSampler(corpus, seed=3)
    loader = DataLoader(corpus, batch_size=4, sampler=sampler)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for ids, labels in loader:
            loss = token_loss(model(ids), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
