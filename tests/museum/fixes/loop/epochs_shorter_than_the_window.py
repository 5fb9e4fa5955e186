"""The counter of micro-batches starts again with each epoch, and no epoch reaches K."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
windows = text(36, lengths=EVEN)  # an epoch each
K = 16

for loader in windows:
    optimizer.zero_grad()
    for i, (ids, labels) in enumerate(loader):
        loss = token_loss(model(ids), labels)
        # fix: instead of the division by K, and of the step after K micro-batches
        (loss / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        # end
