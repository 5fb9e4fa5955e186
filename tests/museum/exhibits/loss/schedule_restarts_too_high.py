"""The second cycle multiplies the learning rate by two hundred, and does not divide it by that."""

import torch

from museum.parts import TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
losses = []

for step, window in enumerate(text(900, lengths=[[[6, 8, 5, 9] * 4]])):
    (ids, labels), *_ = window
    optimizer.param_groups[0]["lr"] = 0.005 * 200 ** (step >= 200)
    optimizer.zero_grad()
    loss = token_loss(model(ids), labels)
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))
