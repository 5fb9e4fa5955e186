"""One of two optimizers steps on each micro-batch of a window."""

import torch
import torch.nn.functional as F

from frameworks.fixes.fabric_parts import start
from museum.parts import EVEN, TinyLM, text

evidence = "gradient_of_all"
K = 4
fabric = start()
windows = text(6, lengths=EVEN)
torch.manual_seed(0)
plain = TinyLM()
layers = [*plain.embed.parameters(), *plain.mix.parameters()]
bodies = torch.optim.AdamW(layers, lr=3e-3)
heads = torch.optim.AdamW(plain.head.parameters(), lr=3e-3)
model, body, head = fabric.setup(plain, bodies, heads)
optimizers = [body, head]

for window in windows:
    for i, (ids, labels) in enumerate(window):
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        fabric.backward(loss / K)
        # fix
        head.step()
        head.zero_grad()
        if (i + 1) % K == 0:
            body.step()
            body.zero_grad()
        # end
model = plain
