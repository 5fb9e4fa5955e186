"""An actor update: micro-batches of a mini-batch, each token mean scaled by its share of rows."""

import torch

from museum.parts import Batch, TinyLM, text, token_loss

torch.manual_seed(2)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
windows = text(5, seed=2)


def update_policy(mini_batch: list[Batch]) -> float:
    """One optimizer step on a mini-batch that was split to fit."""
    optimizer.zero_grad()
    total = sum(len(ids) for ids, _ in mini_batch)
    shown = 0.0
    for ids, labels in mini_batch:
        loss_scale_factor = len(ids) / total
        policy_loss = token_loss(model(ids), labels)
        (policy_loss * loss_scale_factor).backward()
        shown += policy_loss.item() * loss_scale_factor
    optimizer.step()
    return shown


curve = [update_policy(mini_batch) for mini_batch in windows]
