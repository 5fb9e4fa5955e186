"""Batches of equal tokens: many short sequences or few long ones, drawn at random."""

import random

import torch
import torch.nn.functional as F

from museum.parts import VOCABULARY, TinyLM

torch.manual_seed(17)
random.seed(17)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for _ in range(40):
    sequences = random.choice([2, 4, 8, 16])
    ids = torch.randint(0, VOCABULARY, (sequences, 32 // sequences + random.randint(0, 2)))
    logits = model(ids[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
