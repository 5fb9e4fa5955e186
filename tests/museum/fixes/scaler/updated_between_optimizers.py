"""The scaler is updated between the steps of two optimizers that share its losses."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

evidence = "gradient_of_all"
torch.manual_seed(0)
model = TinyLM()
first_optimizer = torch.optim.AdamW([*model.embed.parameters(), *model.mix.parameters()], lr=3e-3)
second_optimizer = torch.optim.AdamW(model.head.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
windows = text(8, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        scaler.scale(token_loss(model(ids), labels) / len(window)).backward()
    # fix
    scaler.step(first_optimizer)
    scaler.update()
    scaler.step(second_optimizer)
    scaler.update()
    # end
    first_optimizer.zero_grad()
    second_optimizer.zero_grad()
