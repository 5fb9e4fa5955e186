"""Writes a program as a script: standalone, deterministic, and readable.

The script keeps what the truth is computed from: ``net`` (the module) and its class ``Net``,
``windows`` (the micro-batches of each window of its rank), and, where it has them, ``norms`` and
``critic``.
"""

from __future__ import annotations

from oracle.program import FRAMEWORKS, Program
from oracle.writing import data, frameworks, layouts, loops, model


def script(program: Program) -> str:
    """The text."""
    parts = [
        data.windows(program),
        model.model(program),
        model.optimizers(program),
        data.totals(program),
        frameworks.loop(program) if program.loop in FRAMEWORKS else loops.loop(program),
        layouts.end(program),
    ]
    body = "\n".join(part.strip("\n") + "\n" for part in parts if part)
    return f"{_head(program, body)}\n\n{body}"


def _head(p: Program, body: str) -> str:
    choices = ", ".join(f"{name} {choice}" for name, choice in p.choices.items())
    standard = [name for name in ("contextlib", "itertools", "math") if f"{name}." in body]
    lines = [f'"""Seed {p.seed}: {choices}."""', ""]
    lines += [f"import {name}" for name in standard] + [""] * bool(standard)
    lines += ["import torch", *layouts.imports(p), *frameworks.imports(p)]
    lines += ["import torch.nn.functional as F", "from torch import nn"]
    if p.checkpointing != "none":
        lines += ["from torch.utils.checkpoint import checkpoint"]
    lines += ["", "torch.set_num_threads(1)", f"torch.manual_seed({p.seed})"]
    return "\n".join([*lines, *layouts.start(p), f"K = {p.k}"])
