"""The main thread never imports torch: a worker does, trains, and ends."""

import threading

results = []


def work():
    import torch

    weight = torch.nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(20):
        optimizer.zero_grad()
        (torch.full((8,), float(step)) - weight).square().sum().backward()
        optimizer.step()
    results.extend(weight.tolist())


thread = threading.Thread(target=work)
thread.start()
thread.join()
print(results)
