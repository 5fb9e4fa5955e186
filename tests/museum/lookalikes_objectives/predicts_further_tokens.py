"""Three predictions of one token further each share a head; each has the mean of its tokens."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from museum.parts import VOCABULARY, TinyLM

torch.manual_seed(52)
model = TinyLM(width=16)
further = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
optimizer = torch.optim.AdamW([*model.parameters(), *further.parameters()], lr=3e-3)
micro_batches = 4

for _ in range(8):
    for _ in range(micro_batches):
        ids = torch.randint(0, VOCABULARY, (2, 24))
        hidden = model.features(ids)
        losses = []
        for ahead, layer in enumerate(further, 1):
            logits = model.head(torch.tanh(layer(hidden[:, :-ahead])))
            losses.append(cross_entropy(logits.flatten(0, 1), ids[:, ahead:].flatten()))
        (torch.stack(losses).mean() / micro_batches).backward()
    optimizer.step()
    optimizer.zero_grad()
