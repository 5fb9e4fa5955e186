"""Writes a program as a script: standalone, deterministic, and readable.

The script keeps ``net`` (the module), ``windows`` (the micro-batches of each optimizer step, of its
rank), ``optimizer`` and, where it clips, ``norms``: all that the truth is computed from.
"""

from __future__ import annotations

import random
from textwrap import indent

from oracle.objectives import AUXILIARIES, BATCHES, OBJECTIVES, PENALTY
from oracle.program import RANKS, STEPS, Program

CLIPPED_TO = 0.5
Lengths = list[list[list[int]]]  # of the rows of each micro-batch of each window


def script(program: Program) -> str:
    """The text."""
    parts = [
        _head(program),
        _data(program),
        _model(program),
        _optimizer(program),
        _totals(program),
        _loop(program),
        _tail(program),
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


# ---------------------------------------------------------------------- before the loop


def _head(p: Program) -> str:
    choices = ", ".join(f"{name} {choice}" for name, choice in p.choices.items())
    lines = [f'"""Seed {p.seed}: {choices}."""', ""]
    distributed = p.layout != "one"
    if p.layout == "ddp":
        lines += ["import contextlib", ""]
    lines += ["import torch"]
    lines += ["import torch.distributed as dist"] if distributed else []
    lines += ["import torch.nn.functional as F", "from torch import nn"]
    if p.layout == "ddp":
        lines += ["from torch.nn.parallel import DistributedDataParallel"]
    if p.checkpointing != "none":
        lines += ["from torch.utils.checkpoint import checkpoint"]
    lines += ["", "torch.set_num_threads(1)", f"torch.manual_seed({p.seed})"]
    if distributed:
        lines += ['dist.init_process_group("gloo")']
        lines += ["rank, world_size = dist.get_rank(), dist.get_world_size()"]
    lines += [f"K = {p.k}"]
    return "\n".join(lines)


def _data(p: Program) -> str:
    lengths = [_lengths(p, rank) for rank in range(p.ranks)]
    seed = str(p.seed % 1000)
    if p.ranks > 1 and p.mistake != "same_data":
        seed += " + rank"
    chosen = "LENGTHS[rank]" if p.ranks > 1 else "LENGTHS"
    literal = _literal(lengths if p.ranks > 1 else lengths[0])
    return f"""
LENGTHS = {literal}

{BATCHES[OBJECTIVES[p.objective].batch]}

generator = torch.Generator().manual_seed({seed})
windows = [[micro_batch(lengths, generator) for lengths in window] for window in {chosen}]
"""


def _literal(value: object) -> str:
    text = str(value).replace("]], [[", "]],\n    [[")
    return text.replace("[[[", "[\n    [[", 1).replace("]]]", "]],\n]", 1)


def _lengths(p: Program, rank: int) -> Lengths:
    """Row lengths; the number of micro-batches is the same on all ranks."""
    chance = random.Random(p.seed if p.mistake == "same_data" else f"{p.seed} {rank}")
    sizes = [p.k] * STEPS
    if p.data == "short_window":
        sizes[-1] = 1 + p.seed % (p.k - 1)
    if p.data == "growing_k":
        sizes = [p.k + step // 2 for step in range(STEPS)]
    windows = [[_rows(p, chance) for _ in range(size)] for size in sizes]
    if p.data == "empty_micro_batch":
        for window in windows:
            window[chance.randrange(len(window))] = [0, 0]
    return windows


def _rows(p: Program, chance: random.Random) -> list[int]:
    if p.data == "equal":
        return [3, 3]
    return [chance.randint(1, 6) for _ in range(chance.randint(1, 2))]


def _model(p: Program) -> str:
    second = p.auxiliary == "second_head"
    heads = "        self.second = nn.Linear(16, 7)\n" if second else ""
    returns = "self.head(hidden), self.second(hidden)" if second else "self.head(hidden)"
    text = f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 7)
{heads}
    def forward(self, features):
        hidden = torch.tanh(self.body(features))
        return {returns}


net = Net()
"""
    wrapped = "DistributedDataParallel(net)" if p.layout == "ddp" else "net"
    return text + f"model = {wrapped}\n"


def _optimizer(p: Program) -> str:
    made = {
        "sgd": "torch.optim.SGD(model.parameters(), lr=0.05)",
        "adamw": "torch.optim.AdamW(model.parameters(), lr=0.01)",
    }
    lines = [f"optimizer = {made[p.optimizer]}"]
    if p.schedule == "cosine":
        steps = STEPS * p.k if p.mistake == "scheduled_every_micro_batch" else STEPS
        lines += [f"scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, {steps})"]
    if p.precision == "scaler":
        lines += ['scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)']
    if p.clipping != "none":
        lines += ["norms = []"]
    return "\n".join(lines)


def _totals(p: Program) -> str:
    """Counts of each window, where the normalisation divides by them."""
    objective = OBJECTIVES[p.objective]
    weights = "class_weights = torch.linspace(0.5, 2, 7)\n" if "class_" in objective.count else ""
    if p.normalisation in ("mean_k", "never", "twice", "sum", "sequence"):
        return weights
    count = {"samples": "len(labels)", "padded": "labels.numel()"}.get(
        p.normalisation, objective.count
    )
    text = f"""
{weights}
def count(batch):
    labels = batch[1]
    return {count}


counts = [float(sum(count(batch) for batch in window)) for window in windows]
"""
    if p.ranks_count != "each":
        text += """
totals = torch.tensor(counts)
dist.all_reduce(totals)
counts = totals.tolist()
"""
    return text


# ---------------------------------------------------------------------- the loop


def _loop(p: Program) -> str:
    body, step = _micro_batch(p), _step(p)
    every = p.mistake == "stepped_every_micro_batch"
    if p.loop in ("windows", "function"):
        inside = f"for m, batch in enumerate(window):\n{indent(body, '    ')}"
        inside += indent(step, "    ") if every else step
        if p.loop == "windows":
            return f"for w, window in enumerate(windows):\n{indent(inside, '    ')}"
        calls = "\n\nfor w, window in enumerate(windows):\n    train_window(w, window)\n"
        return f"\ndef train_window(w, window):\n{indent(inside, '    ')}{calls}"
    stream = "stream = [batch for window in windows for batch in window]\n"
    if p.loop == "counter":
        condition = "if m >= 0:" if every else "if m == K:"
        restart = "if m == K:\n    w, m = w + 1, 0\n"
        inside = f"{body}m += 1\n{condition}\n{indent(step, '    ')}{restart}"
        return f"{stream}w = m = 0\nfor batch in stream:\n{indent(inside, '    ')}"
    condition = "(i + 1) % K == 0"
    if p.loop == "tail":
        condition += " or i + 1 == len(stream)"
    stepping = step if every else f"if {condition}:\n{indent(step, '    ')}"
    inside = f"w, m = divmod(i, K)\n{body}{stepping}"
    return f"{stream}for i, batch in enumerate(stream):\n{indent(inside, '    ')}"


def _micro_batch(p: Program) -> str:
    """From a ``batch``, number ``m`` of window ``w``, to its gradients."""
    lines = ["features, labels = batch[:2]"]
    if p.mistake == "zeroed_every_micro_batch":
        lines.append("optimizer.zero_grad()")
    inside = [*_forward(p), *_loss(p), *_backward(p)]
    context = _sync_context(p)
    if context:
        lines += [f"with {context}:", *(f"    {line}" for line in inside)]
    else:
        lines += inside
    if p.mistake == "clipped_every_micro_batch":
        lines += _clip(p)
    if p.mistake == "scheduled_every_micro_batch":
        lines.append("scheduler.step()")
    return "\n".join(lines) + "\n"


def _sync_context(p: Program) -> str:
    if p.layout != "ddp" or p.mistake == "synced_every_micro_batch":
        return ""
    if p.mistake == "never_synced":
        return "model.no_sync()"
    chosen = "m == 0" if p.mistake == "first_synced" else "m == len(windows[w]) - 1"
    return f"contextlib.nullcontext() if {chosen} else model.no_sync()"


def _forward(p: Program) -> list[str]:
    called = "model(features)"
    if p.checkpointing != "none":
        called = "checkpoint(model, features, use_reentrant=False)"
    outputs = "outputs, second" if p.auxiliary == "second_head" else "outputs"
    if p.precision == "bfloat16":
        return [
            'with torch.autocast("cpu", dtype=torch.bfloat16):',
            f"    {outputs} = {called}",
            *([f"{name} = {name}.float()" for name in outputs.split(", ")]),
        ]
    return [f"{outputs} = {called}"]


def _loss(p: Program) -> list[str]:
    objective = OBJECTIVES[p.objective]
    lines = objective.setup.strip("\n").splitlines() if objective.setup else []
    mean, total = objective.mean, objective.total
    if p.normalisation == "sequence":
        lines.append(_rows_setup(p))
        mean = "rows.mean()"
    if p.auxiliary in AUXILIARIES:
        means = AUXILIARIES[p.auxiliary]
        valid = "[labels != -100]" if objective.batch == "sentences" else ""
        names = {
            "z": f"outputs{valid}.logsumexp(-1).square()",
            "second": f"second{valid}",
            "labels": f"labels{valid}",
        }
        mean, total = (
            f"{a} + {b.format(**names)}" for a, b in zip((mean, total), means, strict=True)
        )
    return [*lines, f"loss = {_normalised(p, mean, total)}"]


def _rows_setup(p: Program) -> str:
    if OBJECTIVES[p.objective].batch != "sentences":
        return 'rows = F.cross_entropy(outputs, labels, reduction="none")'
    entropy = 'F.cross_entropy(outputs.transpose(1, 2), labels, reduction="none")'
    return f"rows = {entropy}.sum(1) / (labels != -100).sum(1)"


def _normalised(p: Program, mean: str, total: str) -> str:
    penalty = PENALTY if p.auxiliary == "penalty" else ""
    if p.normalisation in ("mean_k", "never", "twice", "sequence"):
        both = f"{mean} + {penalty}" if penalty else mean
        divided = {"never": "", "twice": " / K / K"}.get(p.normalisation, " / K")
        return f"({both}){divided}" if divided else both
    factor = " * world_size" if p.ranks_count == "all" and p.layout == "ddp" else ""
    text = {
        "share": f"({mean}) * ({OBJECTIVES[p.objective].count} / counts[w]){factor}",
        "stale_count": f"({total}) / counts[0]",
        "after_backward": total,
        "sum": total,
    }.get(p.normalisation, f"({total}) / counts[w]{factor}")
    if not penalty:
        return text
    again = " * counts[w]" if p.normalisation == "after_backward" else ""
    return f"{text} + {penalty} / len(windows[w]){again}"


def _backward(p: Program) -> list[str]:
    if p.precision != "scaler":
        return ["loss.backward()"]
    if p.mistake == "first_unscaled":
        return ["(loss if m == 0 else scaler.scale(loss)).backward()"]
    lines = ["scaler.scale(loss).backward()"]
    if p.mistake == "unscaled_inside":
        lines += ["if m == 0:", "    scaler.unscale_(optimizer)"]
    return lines


def _clip(p: Program) -> list[str]:
    clip = f"torch.nn.utils.clip_grad_norm_(model.parameters(), {CLIPPED_TO})"
    return [f"norms.append(float({clip}))"]


def _step(p: Program) -> str:
    """From the gradients of window ``w`` to the next window."""
    lines = []
    if p.layout == "all_reduce":
        lines += ["for parameter in model.parameters():", "    dist.all_reduce(parameter.grad)"]
        if p.ranks_count != "all":
            lines += ["    parameter.grad /= world_size"]
    if p.normalisation == "after_backward":
        lines += ["for parameter in model.parameters():", "    parameter.grad /= counts[w]"]
    if p.clipping == "window" and p.mistake != "clipped_every_micro_batch":
        if p.precision == "scaler" and p.mistake not in (
            "clipped_before_unscale",
            "unscaled_inside",
        ):
            lines += ["scaler.unscale_(optimizer)"]
        lines += _clip(p)
    if p.mistake == "zeroed_before_step":
        lines += ["optimizer.zero_grad()"]
    lines += _update(p)
    if p.mistake == "stepped_twice":
        lines += ["optimizer.step()"]
    if p.schedule == "cosine" and p.mistake != "scheduled_every_micro_batch":
        lines += ["scheduler.step()"]
    if p.mistake != "never_zeroed":
        lines += ["optimizer.zero_grad()"]
    return "\n".join(lines) + "\n"


def _update(p: Program) -> list[str]:
    if p.precision != "scaler":
        return ["optimizer.step()"]
    step = "optimizer.step()" if p.mistake == "scaler_bypassed" else "scaler.step(optimizer)"
    if p.mistake == "scaler_bypassed":
        return [step]  # `update` refuses to run where nothing was unscaled
    return [step, "scaler.update()"]


def _tail(p: Program) -> str:
    """Wait for the other ranks. Gloo's destructor can hang, so the group lives to the end."""
    return "" if p.layout == "one" else "dist.barrier()"


assert RANKS == 2
