"""torch.save and load of whole objects and of state dicts, weights_only where it is allowed."""

import io

import torch
from torch import nn


def through_file(thing, weights_only):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    size = buffer.tell()
    buffer.seek(0)
    return size, torch.load(buffer, weights_only=weights_only)


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50)
for _ in range(5):
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
    size, state = through_file(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loss": loss.detach()},
        True,
    )
    print(size, through_file(model.weight.grad, True)[1].tolist())
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    size, (model, optimizer, scheduler) = through_file((model, optimizer, scheduler), False)
    print(size)
print(model.weight.tolist(), optimizer.param_groups[0]["lr"])
