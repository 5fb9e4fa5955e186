"""The usual losses in one compiled region with the model, called as functions and as modules."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 5)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1, reduction="sum")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


@torch.compile(fullgraph=True, backend="eager")
def losses(inputs, targets):
    outputs = model(inputs)
    return (
        nn.functional.cross_entropy(outputs, targets, ignore_index=-100)
        + criterion(outputs, targets) / targets.numel()
        + nn.functional.mse_loss(outputs, inputs[:, :5])
        + nn.functional.nll_loss(outputs.log_softmax(1), targets)
        + nn.functional.binary_cross_entropy_with_logits(outputs, (outputs > 0).float())
    )


for _ in range(6):
    optimizer.zero_grad()
    losses(torch.randn(4, 8), torch.arange(4)).backward()
    optimizer.step()
print(model.weight.tolist())
