"""The rate is planned in optimizer steps, and looked up by micro-batch."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

evidence = "rate"
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
K, STEPS = 4, 24
batches = [batch for window in text(STEPS, lengths=EVEN) for batch in window]


def planned(step):
    """Linearly down to a tenth over the run, and a tenth from then on."""
    return 3e-3 * max(0.1, 1 - 0.9 * step / STEPS)


for i, (ids, labels) in enumerate(batches):
    # fix
    rate = planned(i)
    for group in optimizer.param_groups:
        group["lr"] = rate
    # end
    (token_loss(model(ids), labels) / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
