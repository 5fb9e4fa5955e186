"""A worker of the DataLoader raises; the program catches it and goes on."""

import gc

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == self.bad:
            raise KeyError(f"sample {index}")
        return torch.full((4,), float(index))


weight = nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.01)
for bad in (None, 5, None):
    try:
        for batch in DataLoader(
            Samples(bad), batch_size=4, num_workers=1, multiprocessing_context="fork"
        ):
            optimizer.zero_grad()
            (weight - batch).square().mean().backward()
            optimizer.step()
    except KeyError:
        print("a sample is broken")
    gc.collect()  # else the next worker may collect this loader, and PyTorch complains of that
    print(weight.tolist())
