"""A translation recipe with normalization=tokens, whose counter counts tokens."""

import torch
from torch import Tensor, nn

from museum.parts import IGNORED, TinyLM, text, valid


class Statistics:
    """Sums of a step."""

    def __init__(self) -> None:
        self.normalization = 0

    def add(self, labels: Tensor) -> None:
        self.normalization += valid(labels)


torch.manual_seed(10)
model = TinyLM()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.NLLLoss(ignore_index=IGNORED, reduction="sum")
windows = text(5)

for window in windows:
    statistics = Statistics()
    for _, labels in window:
        statistics.add(labels)
    for ids, labels in window:
        log_p = model(ids).log_softmax(-1)
        loss = criterion(log_p.flatten(0, 1), labels.flatten())
        loss.div(statistics.normalization).backward()
    optimizer.step()
    optimizer.zero_grad()
