"""RLOO: the mean over the answers of a micro-batch, divided by the number of micro-batches."""

import torch

from museum.parts import VOCABULARY, TinyLM

torch.manual_seed(5)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def answers(length):
    """Four answers, and the rewards above the mean of those of the three others."""
    rewards = torch.randn(4)
    return torch.randint(0, VOCABULARY, (4, length)), rewards - (rewards.sum() - rewards) / 3


windows = [[answers(length) for length in (6, 9, 7, 11)] for _ in range(6)]

for window in windows:
    for ids, advantages in window:
        log_p = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        loss = -(advantages * log_p.sum(-1)).mean()
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
