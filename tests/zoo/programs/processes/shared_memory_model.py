"""Two forked children train one model in shared memory, one after the other."""

import torch
import torch.multiprocessing as multiprocessing
from torch import nn


def train(model, seed):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        inputs = torch.randn(4, 8, generator=generator)
        (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(8, 1).share_memory()
    context = multiprocessing.get_context("fork")
    for seed in range(2):
        child = context.Process(target=train, args=(model, seed))
        child.start()
        child.join()
        print(child.exitcode, model.weight.tolist())
