"""The gradients are clipped after the step that they should limit."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
windows = text(6, lengths=[window[:1] for window in EVEN])
max_norm = 0.2

for ((ids, labels),) in windows:
    loss = token_loss(model(ids), labels)
    # fix
    loss.backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    # end
    optimizer.zero_grad()
