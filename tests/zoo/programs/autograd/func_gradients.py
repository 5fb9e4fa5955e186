"""torch.func.grad_and_value over functional_call, updated without any optimizer."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
parameters = dict(model.named_parameters())


def loss(values, inputs):
    outputs = torch.func.functional_call(model, values, (inputs,))
    return (outputs - inputs.sum(1, keepdim=True)).square().mean()


step = torch.func.grad_and_value(loss)
for _ in range(20):
    gradients, value = step(parameters, torch.randn(4, 8))
    parameters = {
        name: (parameters[name] - 0.01 * gradient).detach() for name, gradient in gradients.items()
    }
print(value.item(), {name: tensor.tolist() for name, tensor in parameters.items()})
