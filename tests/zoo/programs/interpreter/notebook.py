"""Code from cells: executed without a file, in a separate namespace, with display hooks."""

import linecache
import sys
import types

CELLS = [
    "import torch\nfrom torch import nn\ntorch.manual_seed(0)",
    "model = nn.Linear(8, 1)\noptimizer = torch.optim.Adam(model.parameters(), lr=0.01)",
    "def train():\n    optimizer.zero_grad()\n    model(torch.randn(4, 8)).square().mean().backward()\n    optimizer.step()",
    "for _ in range(10): train()",
    "model = nn.Linear(8, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.01)",
    "for _ in range(10): train()\nraise ValueError('a cell fails')",
    "for _ in range(10): train()",
    "model.weight.tolist()",
]
notebook = types.ModuleType("__main__")
sys.modules["__main__"] = notebook
sys.displayhook = lambda value: print("Out:", value) if value is not None else None
sys.argv = ["ipykernel_launcher"]
for number, cell in enumerate(CELLS):
    name = f"<cell {number}>"
    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
    kind = "single" if number == len(CELLS) - 1 else "exec"
    try:
        exec(compile(cell, name, kind), vars(notebook))
    except ValueError as error:
        print("Error:", error)
