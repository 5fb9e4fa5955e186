"""One head computes CTC losses at two depths of an encoder; their sum is divided by K."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

torch.manual_seed(0)
lower, upper, head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 6)
optimizer = torch.optim.SGD(nn.ModuleList([lower, upper, head]).parameters(), lr=0.01)


def ctc(features: Tensor, letters: Tensor, lengths: Tensor) -> Tensor:
    log_p = head(features).log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(log_p, letters, torch.full((6,), 10), lengths)


for _ in range(6):
    for _ in range(4):
        letters, lengths = torch.randint(1, 6, (6, 4)), torch.randint(2, 5, (6,))
        early = lower(torch.randn(6, 10, 8)).relu()
        loss = ctc(upper(early).relu(), letters, lengths) + ctc(early, letters, lengths)
        (loss / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
