"""Activation checkpointing around the head and the loss."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(16)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def head_and_loss(hidden: Tensor, labels: Tensor) -> Tensor:
    """The part whose activations are the largest."""
    return token_loss(model.head(hidden), labels, reduction="sum")


for window in text(6, seed=1):
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        hidden = model.features(ids)
        loss = checkpoint(head_and_loss, hidden, labels, use_reentrant=False) / tokens
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
