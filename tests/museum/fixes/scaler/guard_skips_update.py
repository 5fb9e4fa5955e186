"""A guard against norms that are not finite skips step and update together."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss
from museum.truth.tape import Tape

evidence = "updates"
tape = Tape()


class Counted(torch.amp.GradScaler):
    """Counts its updates."""

    def update(self, new_scale=None):
        """Once more."""
        tape.updates += 1
        super().update(new_scale)


torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = Counted("cpu", init_scale=2.0**24)
windows = text(30, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), torch.inf)
    # fix
    if torch.isfinite(norm):
        scaler.step(optimizer)
        scaler.update()
    # end
    optimizer.zero_grad()
