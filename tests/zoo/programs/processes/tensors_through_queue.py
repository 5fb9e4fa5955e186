"""A forked child sends gradients and whole models through a queue."""

import torch
import torch.multiprocessing as multiprocessing
from torch import nn


def work(results, done):
    torch.manual_seed(1)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
    results.put([parameter.grad for parameter in model.parameters()])
    results.put(model)
    done.wait()


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    results, done = context.Queue(), context.Event()
    child = context.Process(target=work, args=(results, done))
    child.start()
    print([gradient.tolist() for gradient in results.get()])
    print(results.get().weight.tolist())
    done.set()
    child.join()
    print(child.exitcode)
