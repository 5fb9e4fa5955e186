"""Six batches an epoch, four to a step: two are left, for the first step of the next epoch."""

import torch
import torch.nn.functional as F

from museum.parts import EVEN, TinyLM, text

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = [batch for window in text(2, lengths=EVEN) for batch in window][:6]
K, windows = 4, []

for _ in range(4):
    for i, (ids, targets) in enumerate(loader):
        logits, labels = model(ids).flatten(0, 1), targets.flatten()
        loss = F.cross_entropy(logits, labels)
        # fix
        (loss / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        # end
    windows += [loader[:K], loader[K:]]
