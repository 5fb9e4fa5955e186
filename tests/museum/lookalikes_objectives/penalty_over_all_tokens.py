"""A penalty towards equal probabilities over all tokens, beside those that a ratio masks."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, VOCABULARY, TinyLM

torch.manual_seed(49)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for _ in range(8):
    ids = torch.randint(VOCABULARY, (8, 32))
    masked = torch.rand(8, 32) < 0.1 + 0.8 * torch.rand(1)  # drawn for each batch
    labels = torch.where(masked, ids, IGNORED).flatten()
    log_p = model(ids.masked_fill(masked, 0)).flatten(0, 1).log_softmax(-1)
    penalty = -log_p.mean(-1).mean()
    (F.nll_loss(log_p, labels, ignore_index=IGNORED) + 0.05 * penalty).backward()
    optimizer.step()
    optimizer.zero_grad()
