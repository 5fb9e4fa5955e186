"""GRPO: divided by the number of micro-batches."""

import torch

from museum.parts import IGNORED, RAGGED, TinyLM, sentences

torch.manual_seed(42)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
generator = torch.Generator().manual_seed(42)


def log_probs(ids, labels):
    """The log-probability of each word of the answers."""
    picked = model(ids).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return picked - model(ids).logsumexp(-1)


def rollout(rows):
    """Answers, the probabilities that they were drawn with, and advantages within the group."""
    ids, labels = sentences(rows, generator)
    with torch.no_grad():
        old = log_probs(ids, labels) + 0.1 * torch.randn(labels.shape, generator=generator)
    rewards = torch.randn(len(rows), generator=generator)
    return ids, labels, old, (rewards - rewards.mean()) / (rewards.std() + 1e-4)


windows = [[rollout(rows) for rows in window] for window in RAGGED * 2]

for window in windows:
    for ids, labels, old, advantages in window:
        mask = (labels != IGNORED).float()
        ratio = (log_probs(ids, labels) - old).exp()
        gains = torch.min(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
        loss = -((gains * mask).sum(-1) / mask.sum(-1)).mean() / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
