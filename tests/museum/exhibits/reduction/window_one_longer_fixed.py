"""The window ends when the count reaches K."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(8)
K = 4
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
windows = text(5, lengths=EVEN)

pending = 0
for ids, labels in [micro_batch for window in windows for micro_batch in window]:
    loss = token_loss(model(ids), labels) / K
    loss.backward()
    pending += 1
    if pending == K:
        optimizer.step()
        optimizer.zero_grad()
        pending = 0
