"""Each loss has a GradScaler: one of them adapts its scale, the other never does."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

evidence, objective = "gradient_of_all", "peaked"
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler, other = (
    torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2) for _ in range(2)
)
windows = text(8, lengths=[window[:1] for window in EVEN])

for ((ids, labels),) in windows:
    first_loss = token_loss(model(ids), labels)
    second_loss = model(ids).logsumexp(-1).square().mean()
    # fix: for each micro-batch
    scaler.scale(first_loss).backward()
    other.scale(second_loss).backward()
    # end
    # fix: after the last micro-batch of the window
    scaler.step(optimizer)
    scaler.update()
    # end
    optimizer.zero_grad()
