"""CTC with its mean, on equal numbers of utterances."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(20)
model = mlp(8, 16, 6)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for _ in range(8):
    for _ in range(4):
        frames, letters = torch.randn(5, 10, 8), torch.randint(1, 6, (5, 4))
        log_p = model(frames).log_softmax(-1).transpose(0, 1)
        lengths = torch.randint(2, 5, (5,))
        loss = F.ctc_loss(log_p, letters, torch.full((5,), 10), lengths, zero_infinity=True)
        (loss / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
