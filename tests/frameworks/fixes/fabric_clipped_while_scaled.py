"""The gradients are clipped while they are scaled: Fabric keeps the GradScaler."""

import torch
import torch.nn.functional as F
from lightning.fabric.plugins import MixedPrecision

from frameworks.fixes.fabric_parts import start
from museum.parts import EVEN, TinyLM, text

K = 4
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
fabric = start(plugins=MixedPrecision("16-mixed", "cpu", scaler))
windows = text(4, lengths=EVEN)


class Float32LM(TinyLM):
    """Computes in float32, so that its gradients are exact."""

    def forward(self, ids):
        with torch.autocast("cpu", enabled=False):
            return super().forward(ids)


torch.manual_seed(0)
plain = Float32LM()
model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=3e-3))
max_norm = 0.2

for window in windows:
    for ids, labels in window:
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        fabric.backward(loss / K)
    # fix
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    # end
    optimizer.step()
    optimizer.zero_grad()
model = plain
