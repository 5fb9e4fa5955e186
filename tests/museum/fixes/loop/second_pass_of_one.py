"""SAM that accumulates: its second pass runs the last micro-batch alone, divided by K.

The radius is so small that the gradient at the moved parameters is that of the window.
"""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
loss_fn = token_loss
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(4, lengths=EVEN)
RADIUS = 1e-6

for batches in windows:
    for x, y in batches:
        (loss_fn(model(x), y) / len(batches)).backward()
    moves = [(p, RADIUS * p.grad) for p in model.parameters() if p.grad is not None]
    with torch.no_grad():
        for p, move in moves:
            p.add_(move)
    optimizer.zero_grad()
    # fix
    (loss_fn(model(x), y) / len(batches)).backward()
    # end
    with torch.no_grad():
        for p, move in moves:
            p.sub_(move)
    optimizer.step()
    optimizer.zero_grad()
