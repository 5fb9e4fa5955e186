"""Quantisation-aware training with fake quantisation and observers, then conversion."""

import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
from torch.ao import quantization

torch.manual_seed(0)
torch.backends.quantized.engine = torch.backends.quantized.supported_engines[-1]
model = nn.Sequential(
    quantization.QuantStub(),
    nn.Linear(8, 8),
    nn.ReLU(),
    nn.Linear(8, 1),
    quantization.DeQuantStub(),
)
model.qconfig = quantization.get_default_qat_qconfig("x86")
quantization.prepare_qat(model.train(), inplace=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(15):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
print(model[1].weight.tolist(), model[1].weight_fake_quant.scale.tolist())
converted = quantization.convert(model.eval())
print(converted(torch.ones(2, 8)).tolist())
