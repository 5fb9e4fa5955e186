"""Complex parameters and gradients, alone and beside real ones."""

import torch
from torch import nn

torch.manual_seed(0)
weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
shift = nn.Parameter(torch.randn(4))
for kind in (torch.optim.SGD, torch.optim.Adam):
    optimizer = kind([weight, shift], lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        signal = torch.fft.fft(torch.randn(2, 4)) + shift
        (signal @ weight).abs().square().mean().backward()
        torch.nn.utils.clip_grad_norm_([weight, shift], 1.0)
        optimizer.step()
only = nn.Parameter(torch.randn(3, dtype=torch.complex128))
optimizer = torch.optim.SGD([only], lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    (only * only.conj()).real.sum().backward()
    optimizer.step()
print(weight.tolist(), shift.tolist(), only.tolist())
