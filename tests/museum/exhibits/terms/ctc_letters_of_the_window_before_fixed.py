"""The letters of the window are counted before its first backward."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(75)
model = mlp(8, 16, 6)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
windows = []


def utterances(count):
    """Ten frames for each, and two to four letters."""
    return torch.randn(count, 10, 8), torch.randint(1, 6, (count, 4)), torch.randint(2, 5, (count,))


def ctc(frames, letters, lengths, reduction):
    """The CTC loss."""
    log_p = model(frames).log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(log_p, letters, torch.full((len(frames),), 10), lengths, reduction=reduction)


for _ in range(10):
    window = [utterances(count) for count in torch.randint(2, 9, (3,)).tolist()]
    count = sum(int(lengths.sum()) for _, _, lengths in window)
    for frames, letters, lengths in window:
        loss = ctc(frames, letters, lengths, "sum") / count
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
