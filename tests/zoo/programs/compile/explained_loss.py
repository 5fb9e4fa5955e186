"""dynamo.explain of a function with a loss and clipping: graphs, breaks and operators."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def evaluate(inputs, targets):
    outputs = model(inputs)
    return nn.functional.cross_entropy(outputs, targets) / 4


for _ in range(3):
    optimizer.zero_grad()
    evaluate(torch.randn(4, 8), torch.arange(4)).backward()
    optimizer.step()
explanation = torch._dynamo.explain(evaluate)(torch.randn(4, 8), torch.arange(4))
print(explanation.graph_count, explanation.graph_break_count, explanation.op_count)
print(model.weight.tolist())
