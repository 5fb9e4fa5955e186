"""Gradients are zeroed between backward and step."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(4, lengths=[window[:1] for window in EVEN])

for ((ids, labels),) in windows:
    loss = token_loss(model(ids), labels)
    # fix
    loss.backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    # end
