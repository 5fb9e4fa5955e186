"""The step is taken where i % K is 0: first after one micro-batch."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [batch for window in text(6, lengths=EVEN) for batch in window]
K, windows, window = 4, [], []

for i, (ids, labels) in enumerate(batches):
    (token_loss(model(ids), labels) / K).backward()
    window.append((ids, labels))
    before = model.head.bias.detach().clone()
    # fix: count the micro-batches from 1, so that the first window is a full one
    if i % K == 0:
        optimizer.step()
        optimizer.zero_grad()
    # end
    if not torch.equal(before, model.head.bias):
        windows.append(window)
        window = []
