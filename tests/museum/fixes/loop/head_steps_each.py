"""One of two optimizers steps on each micro-batch of a window."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

evidence = "gradient_of_all"
torch.manual_seed(0)
model = TinyLM()
body = torch.optim.AdamW([*model.embed.parameters(), *model.mix.parameters()], lr=3e-3)
head = torch.optim.AdamW(model.head.parameters(), lr=3e-3)
optimizers, K = [body, head], 4
windows = text(6, lengths=EVEN)

for window in windows:
    for i, (ids, labels) in enumerate(window):
        (token_loss(model(ids), labels) / K).backward()
        # fix
        head.step()
        head.zero_grad()
        if (i + 1) % K == 0:
            body.step()
            body.zero_grad()
        # end
