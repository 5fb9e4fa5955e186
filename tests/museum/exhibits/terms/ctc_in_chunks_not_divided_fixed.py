"""The losses of utterances are computed in chunks and joined; their mean is divided by K."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(8)
model = mlp(8, 16, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
windows = [
    [
        (torch.randn(6, 10, 8), torch.randint(1, 6, (6, 4)), torch.randint(2, 5, (6,)))
        for _ in range(4)
    ]
    for _ in range(6)
]

for window in windows:
    for batch in window:
        losses = []
        for frames, letters, lengths in zip(*(part.split(2) for part in batch), strict=True):
            log_p = model(frames).log_softmax(-1).transpose(0, 1)
            each = F.ctc_loss(log_p, letters, torch.full((2,), 10), lengths, reduction="none")
            losses.append(each)
        loss = torch.cat(losses).mean()
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
