"""The script divides by K, and so does the engine's backward."""

import torch
from torch import Tensor, nn

from museum.parts import mlp, points

ACCUMULATION = 3


class Engine:
    """Owns backward and step."""

    def __init__(self, module: nn.Module) -> None:
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        self.seen = 0

    def backward(self, loss: Tensor) -> None:
        (loss / ACCUMULATION).backward()

    def step(self) -> None:
        self.seen += 1
        if self.seen % ACCUMULATION == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


torch.manual_seed(17)
model = mlp(8, 16, 4)
engine = Engine(model)
criterion = nn.CrossEntropyLoss()
windows = [
    [(x, y.squeeze(1).long().remainder(4)) for x, y in points([10] * ACCUMULATION, seed=step)]
    for step in range(5)
]

for window in windows:
    for x, y in window:
        loss = criterion(model(x), y)
        engine.backward(loss / ACCUMULATION)
        engine.step()
