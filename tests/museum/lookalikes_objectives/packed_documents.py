"""Documents are packed into one row, and the loss is the mean over them of the mean of each."""

import torch
import torch.nn.functional as F

from museum.parts import VOCABULARY, TinyLM

torch.manual_seed(82)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
micro_batches = 4

for _ in range(6):
    for _ in range(micro_batches):
        lengths = torch.randint(3, 12, (3,)).tolist()
        ids = torch.randint(VOCABULARY, (sum(lengths) + 1,))
        logits, labels = model(ids[None, :-1])[0], ids[1:]
        documents = zip(logits.split(lengths), labels.split(lengths), strict=True)
        losses = [F.cross_entropy(scores, tokens) for scores, tokens in documents]
        (torch.stack(losses).mean() / micro_batches).backward()
    optimizer.step()
    optimizer.zero_grad()
