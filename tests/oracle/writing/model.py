"""The text of a script's model, optimizers and scaler."""

from __future__ import annotations

from oracle.program import STEPS, Program
from oracle.writing import frameworks, layouts

_CLASSES = {
    "sgd": "torch.optim.SGD({}, lr=0.05)",
    "adamw": "torch.optim.AdamW({}, lr=0.01)",
}


def model(p: Program) -> str:
    """``net``, and ``model``, which the loop calls."""
    if p.pipeline:
        return _stages(p)
    second = "second_head" in p.auxiliaries
    heads = "        self.second = nn.Linear(16, 7)\n" if second else ""
    returns = "self.head(hidden), self.second(hidden)" if second else "self.head(hidden)"
    forward = f"""
    def forward(self, features):
        hidden = torch.tanh(self.body(features))
        return {returns}
"""
    if p.loop == "trl_sft":
        return frameworks.causal_model()
    if p.loop == "trainer_head":
        forward = frameworks.head_forward(p)
    text = f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 7)
{heads}{forward}

net = Net()
"""
    if p.optimizers == "adversary":
        text += "critic = nn.Linear(7, 1)\n"
    compiled = 'torch.compile(net, backend="eager", dynamic=True)'
    wrapped = compiled if p.compile == "model" else layouts.wrapped(p)
    return text + layouts.shard(p) + f"model = {wrapped}\n"


def _stages(p: Program) -> str:
    """``net``, of which the optimizer of each process gets the parts that are its stages."""
    between = ["nn.Sequential(nn.Linear(16, 16), nn.Tanh())"] * (layouts.stages(p) - 2)
    parts = ["nn.Sequential(nn.Linear(8, 16), nn.Tanh())", *between, "nn.Linear(16, 7)"]
    lines = "\n".join(f"                {part}," for part in parts)
    return f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(
            [
{lines}
            ]
        )

    def forward(self, features):
        for part in self.parts:
            features = part(features)
        return features


net = Net()
own = {layouts.own_stages(p)}
model = nn.ModuleList([net.parts[i] for i in own])
"""


def names_of_optimizers(p: Program) -> list[str]:
    """The variables of the optimizers of ``net``."""
    return ["optimizer", "head_optimizer"] if p.optimizers == "two" else ["optimizer"]


def optimizers(p: Program) -> str:
    """Optimizers, and what follows them through the loop."""
    made = _CLASSES[p.optimizer]
    if p.optimizers == "two":
        rest = "[p for name, p in net.named_parameters() if not name.startswith('body')]"
        lines = [
            f"optimizer = {made.format('net.body.parameters()')}",
            f"head_optimizer = {made.format(rest)}",
        ]
    else:
        lines = [f"optimizer = {made.format('model.parameters()')}"]
    if p.optimizers == "adversary":
        lines += ["critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=0.01)"]
    if p.schedule == "cosine":
        lines += [f"scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, {STEPS})"]
    if p.scaled:
        lines += ['scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)']
        if p.scalers == "two":
            lines += ['critic_scaler = torch.amp.GradScaler("cpu", init_scale=128.0)']
    if p.accumulate_in == "buffers":
        lines += ["sums = {p: torch.zeros_like(p) for p in model.parameters()}"]
    if p.clipping != "none":
        lines += ["norms = []"]
    return "\n".join(lines)
