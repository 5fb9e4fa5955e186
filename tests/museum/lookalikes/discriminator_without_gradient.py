"""A GAN whose discriminator is far ahead at times: its hinge loss then has a gradient of zero."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

K = 4
torch.manual_seed(4)
G, D = mlp(4, 16, 2), mlp(2, 16, 1)
opt_G = torch.optim.AdamW(G.parameters(), lr=1e-3)
opt_D = torch.optim.AdamW(D.parameters(), lr=1e-3)


for step in range(12):
    opt_G.zero_grad()
    for _ in range(K):
        (-D(G(torch.randn(16, 4))).mean() / K).backward()
    opt_G.step()

    opt_D.zero_grad()  # what the generator's loss left there
    ahead = 100.0 if step in (4, 5, 9) else 0.0
    for _ in range(K):
        real, fake = D(torch.randn(16, 2)) + ahead, D(G(torch.randn(16, 4)).detach()) - ahead
        ((F.relu(1 - real).mean() + F.relu(1 + fake).mean()) / K).backward()
    opt_D.step()
