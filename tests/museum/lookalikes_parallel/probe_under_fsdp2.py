"""A probe on detached features, and a body that accumulates twice as many micro-batches."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from museum.parts import mlp, two_ranks


class Probed(nn.Module):
    """An autoencoder, and a classifier on what it encodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.probe = mlp(8, 16, 6), mlp(6, 16, 8), nn.Linear(6, 5)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.encoder(inputs)
        return self.decoder(features), self.probe(features.detach())


K_BODY, K_PROBE = 4, 2

with two_ranks() as rank:
    torch.manual_seed(0)
    model = Probed()
    for part in (model.encoder, model.decoder, model.probe, model):
        fully_shard(part)
    body = [*model.encoder.parameters(), *model.decoder.parameters()]
    body_optimizer = torch.optim.AdamW(body, lr=3e-3)
    probe_optimizer = torch.optim.SGD(model.probe.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)

    for i in range(24):
        inputs, labels = torch.randn(12, 8), torch.randint(0, 5, (12,))
        decoded, logits = model(inputs)
        loss = F.mse_loss(decoded, inputs) / K_BODY + F.cross_entropy(logits, labels) / K_PROBE
        loss.backward()
        if (i + 1) % K_PROBE == 0:
            probe_optimizer.step()
            probe_optimizer.zero_grad()
        if (i + 1) % K_BODY == 0:
            body_optimizer.step()
            body_optimizer.zero_grad()
