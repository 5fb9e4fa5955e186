"""The teacher is a part of the model, follows the student as an average, and requires gradients."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from museum.parts import mlp


class Pair(nn.Module):
    """A student, and the average of its past."""

    def __init__(self) -> None:
        super().__init__()
        self.student = mlp(8, 16, 4)
        self.teacher = copy.deepcopy(self.student)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What both make of it; the teacher's is a target, and one with a gradient of 0."""
        return self.student(x), self.teacher(x)


torch.manual_seed(0)
model = Pair()
optimizer = torch.optim.Adam(model.student.parameters(), lr=1e-2)

for _ in range(40):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    made, target = model(x + 0.1 * torch.randn(32, 8))
    loss = mse_loss(made, target.detach()) + mse_loss(made, x[:, :4].tanh()) + 0 * target.sum()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        pairs = zip(model.student.parameters(), model.teacher.parameters(), strict=True)
        for own, average in pairs:
            average.lerp_(own, 0.05)
