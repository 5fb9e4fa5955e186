"""An audit hook that refuses to open sockets from the main thread and counts threads and processes."""

import sys
import threading

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train(steps=10):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


main, refused = threading.get_ident(), []


def audit(event, arguments):
    if event in ("socket.connect", "subprocess.Popen", "os.system") and (
        threading.get_ident() == main
    ):
        refused.append(event)
        raise PermissionError(event)


sys.addaudithook(audit)
train()
print(refused, model.weight.tolist())
