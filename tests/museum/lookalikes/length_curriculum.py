"""Sentences grow from 4 to 12 tokens; rows per step and rate stay as they are."""

import torch

from museum.parts import TinyLM, sentences, token_loss, valid

torch.manual_seed(20)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
generator = torch.Generator().manual_seed(20)

for length in (4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12):
    window = [sentences([length] * 4, generator) for _ in range(2)]
    for ids, labels in window:
        tokens = sum(valid(each) for _, each in window)
        (token_loss(model(ids), labels, "sum") / tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
