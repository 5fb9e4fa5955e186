"""A policy gradient: the token mean is taken over each micro-batch of answers, a prompt's group."""

import torch

from museum.parts import IGNORED, RAGGED, TinyLM, text

torch.manual_seed(3)
policy = model = TinyLM()
optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
coin = torch.Generator().manual_seed(3)
windows = [
    [(q, a, torch.randn(len(q), 1, generator=coin).expand_as(a)) for q, a in window]
    for window in text(5, seed=3, lengths=RAGGED)
]


def masked_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (values * mask).sum()


for rollout in windows:
    for queries, answers, advantages in rollout:
        mask = (answers != IGNORED).float()
        log_probs = torch.log_softmax(policy(queries), dim=-1)
        chosen = log_probs.gather(-1, answers.clamp(min=0)[..., None])[..., 0]
        pg_loss = masked_sum(-chosen * advantages, mask) / mask.sum()
        (pg_loss / len(rollout)).backward()
    optimizer.step()
    optimizer.zero_grad()
