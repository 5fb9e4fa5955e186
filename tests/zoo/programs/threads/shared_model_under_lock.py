"""Four threads take turns at one model: each holds the lock from forward to step."""

import threading

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
lock = threading.Condition()
turn = 0
batches = torch.randn(80, 8, 16)


def train(number):
    global turn
    for batch in batches[number::4]:
        with lock:
            lock.wait_for(lambda: turn == number)
            optimizer.zero_grad()
            (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            turn = (turn + 1) % 4
            lock.notify_all()


threads = [threading.Thread(target=train, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(model.weight.tolist(), model.bias.tolist())
