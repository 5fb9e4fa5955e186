"""The learning rate of the second phase, from percent."""

import torch

from museum.parts import TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []

for step, window in enumerate(text(90, lengths=[[[6, 8, 5, 9]]])):
    (ids, labels), *_ = window
    optimizer.param_groups[0]["lr"] = 0.1 if step < 30 else 50 / 100
    optimizer.zero_grad()
    loss = token_loss(model(ids), labels)
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))
