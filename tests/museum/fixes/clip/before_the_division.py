"""The gradients of sums are clipped, and divided by the tokens of the window only then."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
windows = text(6)
max_norm = 0.2

for window in windows:
    divisor = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        token_loss(model(ids), labels, "sum").backward()
    # fix
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    for p in model.parameters():
        assert p.grad is not None
        p.grad.div_(divisor)
    optimizer.step()
    # end
    optimizer.zero_grad()
