"""Scripted modules, functions and losses, trained, saved and loaded."""

import io
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor, twice: bool = False) -> torch.Tensor:
        hidden = torch.relu(self.first(inputs))
        if twice:
            hidden = torch.relu(self.first(hidden))
        return self.second(hidden)


@torch.jit.script
def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().mean()


torch.manual_seed(0)
model = torch.jit.script(Net())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(15):
    inputs = torch.randn(4, 8)
    optimizer.zero_grad()
    loss_of(model(inputs, step % 2 == 0), inputs.sum(1, keepdim=True)).backward()
    optimizer.step()
buffer = io.BytesIO()
torch.jit.save(model, buffer)
buffer.seek(0)
print(torch.jit.load(buffer)(torch.ones(1, 8)).tolist())
print([parameter.tolist() for parameter in model.parameters()])
