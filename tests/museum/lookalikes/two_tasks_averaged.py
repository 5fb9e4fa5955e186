"""Two tasks with one head and unequal numbers of tokens: their means are averaged."""

import torch

from museum.parts import TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
chat = text(8, seed=1, lengths=(((6, 6), (6, 6)),))
code = text(8, seed=2, lengths=(((3, 3), (3, 3)),))

for chats, codes in zip(chat, code, strict=True):
    for (ids, labels), (more_ids, more_labels) in zip(chats, codes, strict=True):
        loss = token_loss(model(ids), labels) + token_loss(model(more_ids), more_labels)
        (loss / 2 / len(chats)).backward()
    optimizer.step()
    optimizer.zero_grad()
