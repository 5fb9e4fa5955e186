"""One generator goes through all epochs."""

import torch
from torch.utils.data import DataLoader

from museum.parts import TinyLM, sentences, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
corpus = [tuple(x[0] for x in sentences((8,), torch.Generator().manual_seed(n))) for n in range(24)]
generator = torch.Generator().manual_seed(3)

for _ in range(4):
    loader = DataLoader(corpus, batch_size=4, shuffle=True, generator=generator)
    for ids, labels in loader:
        loss = token_loss(model(ids), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
