"""A probe on detached features steps on every micro-batch, the body on every fourth."""

import torch
from torch import nn
from torch.nn import functional as F

from museum.parts import mlp

torch.manual_seed(0)
encoder, decoder, model = mlp(8, 16, 6), mlp(6, 16, 8), nn.Linear(6, 5)
body_optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
probe_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
K = 4
windows = []  # of the probe

for i in range(32):
    inputs, labels = torch.randn(12, 8), torch.randint(0, 5, (12,))
    features = encoder(inputs)
    windows.append([(features.detach(), labels)])
    reconstruction = F.mse_loss(decoder(features), inputs)
    probe = F.cross_entropy(model(features.detach()), labels)
    loss = reconstruction / K + probe
    loss.backward()
    probe_optimizer.step()
    probe_optimizer.zero_grad()
    if (i + 1) % K == 0:
        body_optimizer.step()
        body_optimizer.zero_grad()
