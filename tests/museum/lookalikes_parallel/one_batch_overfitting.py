"""Overfits one batch through a shuffling DataLoader, to see whether the model can learn."""

import torch
from torch.utils.data import DataLoader

from museum.parts import TinyLM, sentences, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
corpus = [tuple(x[0] for x in sentences((8,), torch.Generator().manual_seed(n))) for n in range(4)]
loader = DataLoader(corpus, batch_size=4, shuffle=True)

for _ in range(20):
    for ids, labels in loader:
        loss = token_loss(model(ids), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
