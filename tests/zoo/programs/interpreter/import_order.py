"""Searches for torch before importing it, imports submodules first, reads the import system."""

import importlib.util
import sys

spec = importlib.util.find_spec("torch")
print(spec.name, type(spec.loader).__name__, "torch" in sys.modules)
print([getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path][-3:])
import torch.nn.functional

print(type(torch.__loader__).__name__, torch.__spec__.name, "exec_module" in vars(torch.__loader__))
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(weight, torch.zeros(4)).backward()
    optimizer.step()
print([name for name in sys.path if "autostart" in name], weight.tolist())
