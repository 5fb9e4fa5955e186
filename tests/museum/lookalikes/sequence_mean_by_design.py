"""Every sentence counts alike, however long: the mean of each row's token mean."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, TinyLM, text

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for window in text(6):
    for ids, labels in window:
        nll = F.cross_entropy(
            model(ids).transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
        )
        per_sentence = nll.sum(1) / (labels != IGNORED).sum(1)
        (per_sentence.mean() / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
