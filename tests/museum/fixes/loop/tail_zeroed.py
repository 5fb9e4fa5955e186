"""The last micro-batches of an epoch are zeroed by the next one, without a step."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
loss_fn = token_loss
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
K, windows = 4, []

for epoch in range(3):
    of_epoch = text(2, seed=2 * epoch, lengths=(*EVEN, EVEN[0][:2]))
    windows += of_epoch
    loader = [batch for window in of_epoch for batch in window]
    # fix
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        (loss_fn(model(x), y) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
    # end
