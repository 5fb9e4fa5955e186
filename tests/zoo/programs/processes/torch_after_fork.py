"""Forks before torch is imported; both sides import it and train."""

import os


def train(target):
    import torch

    weight = torch.nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.SGD([weight], lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        (weight - target).square().sum().backward()
        optimizer.step()
    return weight.tolist()


reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.close(reader)
    os.write(writer, repr(train(1.0)).encode())
    os._exit(0)
os.close(writer)
os.waitpid(child, 0)
with os.fdopen(reader) as pipe:
    print(pipe.read())
print(train(2.0))
